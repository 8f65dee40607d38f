// Accounts: what is left of my plans?

import { get, send, session } from "../api.js";
import { meter } from "../chart.js";
import { announce, h, show } from "../dom.js";
import { ago, exactTime, number } from "../format.js";
import { readLines } from "../lines.js";
import { empty, failed, fill, loading } from "../states.js";
import { copyButton, plain, quote } from "../text.js";

export const title = "Accounts";
const SIGN_IN = ["kiro", "codex", "copilot"];

/** @returns {import("../main.js").Page} */
export function open() {
  const view = new Accounts();
  void view.load();
  return { node: view.node, close: () => view.control.abort() };
}

class Accounts {
  constructor() {
    this.control = new AbortController();
    this.place = h("div");
    this.quotas = h("div");
    this.signing = h("div", { role: "status" });
    const ask = h("button", { type: "button", onclick: () => void this.askQuotas() }, "Read the plans now");
    const sign = SIGN_IN.map((kind) => h("button", { type: "button", onclick: () => void this.signIn(kind) }, `Sign in to ${kind}`));
    this.node = h("div", null, h("div.bar", null, ask, session.may("accounts:write") ? sign : null), this.signing, this.quotas, this.place);
  }

  load() {
    return fill(this.place, () => get("/api/v1/accounts", {}, this.control.signal), (data) =>
      data.accounts.length ? h("div.cards", null, data.accounts.map(account)) : empty("No providers", "Add one in dragoman.toml, or sign in above."));
  }

  async askQuotas() {
    show(this.quotas, loading("Asking the providers, up to 20 s…"));
    try {
      const data = await get("/api/v1/accounts/quotas", {}, this.control.signal);
      const wrong = Object.entries(data.problems).map(([name, why]) => h("p.notice", null, `${plain(name)}: `, quote(why, 500)));
      show(this.quotas, wrong, data.quotas.length ? h("section.card", null, h("h2", null, "Plans, as of now"), h("dl.facts", null, data.quotas.map(quota).flat()))
        : wrong.length ? null : empty("No provider reports a plan", "Kiro, Codex and Copilot accounts do."));
    } catch (error) {
      if (!this.control.signal.aborted) show(this.quotas, failed(error, () => void this.askQuotas()));
    }
  }

  /** @param {string} kind */
  async signIn(kind) {
    show(this.signing, loading(`Starting the sign-in to ${kind}…`));
    try {
      const response = await send("POST", "/api/v1/accounts/sign-in", { kind, method: "code" }, { signal: this.control.signal });
      for await (const event of readLines(response)) this.onSignIn(kind, event);
    } catch (error) {
      if (!this.control.signal.aborted) show(this.signing, failed(error, () => void this.signIn(kind)));
    }
  }

  /** @param {string} kind @param {any} event */
  onSignIn(kind, event) {
    if (event.event === "prompt") {
      const wait = h("p.soft", { id: "wait" }, "Waiting for you to confirm…");
      show(this.signing, h("section.card", null, h("h2", null, `Sign in to ${kind}`), h("p", null, "Open this address on any device and enter the code."),
        h("div.bar", null, h("code", null, plain(event.link)), copyButton(() => event.link, "Copy address")), h("div.bar", null, h("strong.mono", null, plain(event.code)), copyButton(() => event.code, "Copy code")), wait));
      announce(`The code is ${event.code}`);
    } else if (event.event === "waiting") {
      const wait = document.getElementById("wait");
      if (wait) wait.textContent = `Waiting for you to confirm, ${Math.round(event.seconds)} s left…`;
    } else if (event.event === "signed_in") {
      show(this.signing, h("p.notice.good", null, `Signed in to ${plain(event.provider)}.`, event.use === "overridden" ? ` It is not used: ${plain(event.overridden_by)} names another file.` : ""));
      void this.load();
    } else if (event.event === "failed") show(this.signing, h("p.notice.bad", { role: "alert" }, quote(event.message, 1000)));
  }
}

/** @param {any} one */
function quota(one) {
  const label = `${number(one.used)} of ${one.limit === null ? "unlimited" : number(one.limit)} ${plain(one.what)}`;
  return [h("dt", null, `${plain(one.provider)} ${plain(one.plan || "")}`), h("dd", null, one.limit ? meter(one.used / one.limit, label) : null, label, one.resets_on ? `, starts anew ${plain(one.resets_on)}` : "")];
}

/** @param {any} one */
function account(one) {
  return h("article.card", null, h("h2", null, plain(one.provider)), h("p.soft", null, plain(one.kind)), one.credentials.map(credential),
    one.login_command ? h("div.bar", null, h("code", null, plain(one.login_command)), copyButton(() => one.login_command)) : null);
}

/** @param {any} one */
function credential(one) {
  const windows = Object.entries(one.limits?.windows || {});
  return h("section", null, h("h3", null, h(one.is_available ? "span.ok" : "span.warn", { "aria-hidden": "true" }, one.is_available ? "● " : "▲ "), quote(one.label), one.is_available ? "" : " (resting)"),
    one.cooldowns.map((/** @type {any} */ rest) => h("p", null, `Rests until ${exactTime(rest.until * 1000)}, ${ago(rest.until * 1000)}: `, quote(rest.reason, 300), rest.model ? ` (${plain(rest.model)})` : "")),
    one.limits?.plan ? h("p.soft", null, `Plan: ${plain(one.limits.plan)}`) : null,
    windows.map(([name, window]) => h("div", null, h("p", null, `${plain(name)}: `, window.unlimited ? "unlimited" : `${number(window.used_percent)} % used`, window.resets_at ? `, starts anew ${ago(window.resets_at * 1000)}` : ""),
      window.unlimited || window.used_percent === null ? null : meter(window.used_percent / 100, `${plain(name)}: ${number(window.used_percent)} % used`))));
}

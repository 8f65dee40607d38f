// Accounts: what is left of my plans?

import { keepInAddress } from "../address.js";
import { get, send, session } from "../api.js";
import { meter, planWindows } from "../chart.js";
import { announce, h, show } from "../dom.js";
import { ago, exactTime, number } from "../format.js";
import { SignIn } from "../signin.js";
import { empty, failed, fill, loading } from "../states.js";
import { copyButton, plain, quote } from "../text.js";

export const title = "Accounts";
const LIST_AGAIN_MS = 3000;

/** @param {{query: URLSearchParams}} address @returns {import("../main.js").Page} */
export function open({ query }) {
  const view = new Accounts(query.get("sign-in") || "");
  void view.load();
  return { node: view.node, close: () => view.control.abort() };
}

class Accounts {
  /** @param {string} kind that the address wants to sign in to */
  constructor(kind) {
    this.control = new AbortController();
    this.place = h("div");
    this.quotas = h("div");
    /** @type {any[]} */
    this.learned = [];
    this.signIn = new SignIn(this.control.signal, () => this.signedIn());
    const ask = h("button", { type: "button", onclick: () => void this.askQuotas() }, "Read the plans now");
    const may = session.may("accounts:write");
    this.node = h("div", null, h("div.bar", null, ask, may ? this.signIn.buttons : null), this.signIn.node, this.quotas, this.place);
    if (may && kind) this.signIn.choose(kind);
  }

  load() {
    return fill(this.place, () => this.read(), (data) =>
      data.accounts.length ? h("div.cards", null, data.accounts.map((/** @type {any} */ one) => this.card(one))) : empty("No providers", "Add one in dragoman.toml, or sign in above."));
  }

  /** The accounts, and what was learned from their rejections, as far as this session may see them. */
  async read() {
    const [data, learned] = await Promise.all([
      get("/api/v1/accounts", {}, this.control.signal),
      get("/api/v1/quirks", {}, this.control.signal).catch(() => null), // without a store there are none
    ]);
    this.learned = learned ? learned.rules : [];
    return data;
  }

  /** The provider's models are listed with the new credential a moment later. */
  signedIn() {
    keepInAddress({});
    void this.load();
    setTimeout(() => { if (!this.control.signal.aborted) void this.load(); }, LIST_AGAIN_MS);
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

  /** @param {any} one */
  card(one) {
    const hasCooldowns = one.credentials.some((/** @type {any} */ credential) => credential.cooldowns.length);
    const again = h("button", { type: "button", onclick: () => void this.endCooldowns(one.provider, again) }, "Ask again now");
    return h("article.card", null, h("h2", null, plain(one.provider), one.kind === one.provider ? null : h("span.soft", null, ` ${plain(one.kind)}`)),
      one.problem ? h("p", null, h("span.mark.warn", { "aria-hidden": "true" }, "▲"), ` Models not listed: ${plain(one.problem)}.`) : null,
      one.credentials.map((/** @type {any} */ each) => credential(each, one.problem)),
      hasCooldowns && session.may("accounts:write") ? h("div.bar", null, again, h("span.soft", null, "Ends the cooldowns: the next request uses this provider again.")) : null,
      this.rules(one.provider),
      one.login_command ? h("div.bar.below", null, this.signIn.offers(one.kind) && session.may("accounts:write") ? h("button", { type: "button", onclick: () => this.signIn.choose(one.kind) }, "Sign in") : null,
        h("code", null, plain(one.login_command)), copyButton(() => one.login_command)) : null);
  }

  /** What is left out of requests to a provider because it rejected it. @param {string} provider */
  rules(provider) {
    const known = this.learned.filter((/** @type {any} */ rule) => rule.provider === provider);
    if (!known.length) return null;
    const forget = h("button", { type: "button", onclick: () => void this.forget(provider, forget) }, "Forget");
    return h("details", null, h("summary", null, `${known.length} learned from rejections`),
      h("ul.plain", null, known.map(learnedRule)),
      session.may("accounts:write") ? h("div.bar", null, forget, h("span.soft", null, "The next request is sent in full form again.")) : null);
  }

  /** @param {string} provider @param {any} button */
  async forget(provider, button) {
    button.disabled = true;
    try {
      await send("DELETE", `/api/v1/quirks/${encodeURIComponent(provider)}`);
      announce(`The rules learned about ${provider} are forgotten.`);
    } catch (error) {
      show(this.quotas, failed(error));
    }
    await this.load();
  }

  /** @param {string} provider @param {any} button */
  async endCooldowns(provider, button) {
    button.disabled = true;
    try {
      await send("DELETE", `/api/v1/accounts/${encodeURIComponent(provider)}/cooldowns`);
      announce(`The cooldowns of ${provider} have ended.`);
    } catch (error) {
      show(this.quotas, failed(error));
    }
    await this.load();
  }
}

/** @param {any} rule */
function learnedRule(rule) {
  const until = Date.parse(rule.until);
  return h("li", null, h("code", null, plain(rule.path || rule.rule)), rule.path ? h("span.soft", null, ` ${plain(rule.rule)}`) : null,
    `, ${rule.model ? plain(rule.model) : "all models"}, key ${plain(rule.key)}, `, h("span.soft", { title: exactTime(until) }, `forgotten ${ago(until)}`));
}

/** @param {any} one */
function quota(one) {
  const label = `${number(one.used)} of ${one.limit === null ? "unlimited" : number(one.limit)} ${plain(one.what)}`;
  return [h("dt", null, `${plain(one.provider)} ${plain(one.plan || "")}`), h("dd", null, one.limit ? meter(one.used / one.limit, label) : null, label, one.resets_on ? `, resets ${plain(one.resets_on)}` : "")];
}

/** @param {any} one @param {string} problem of its provider */
function credential(one, problem) {
  const name = one.label === "1 of 1" ? "Credential" : `Credential ${plain(one.label)}`;
  const [colour, sign, state] = !one.is_available ? ["warn", "▲", "cooling down"] : problem ? ["soft", "○", "not proven to work"] : ["ok", "●", "available"];
  return h("section", null, h("h3", null, h(`span.${colour}`, { "aria-hidden": "true" }, `${sign} `), name, h("span.soft", null, ` ${state}`)),
    one.cooldowns.map((/** @type {any} */ rest) => h("p", null, `Not used until ${exactTime(rest.until * 1000)}, ${ago(rest.until * 1000)}: `, quote(rest.reason, 300), rest.model ? ` (${plain(rest.model)})` : "")),
    one.expires_at ? h("p.soft", { title: exactTime(one.expires_at * 1000) }, one.expires_at * 1000 > Date.now() ? `Its token expires ${ago(one.expires_at * 1000)} and is renewed before.` : `Its token expired ${ago(one.expires_at * 1000)}; the next request renews it.`) : null,
    planWindows(one.limits));
}


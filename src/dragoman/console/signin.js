// Sign in to a provider's account: by a code on any device, or in a browser on the gateway's machine. No token is ever shown.

import { send } from "./api.js";
import { announce, h, show } from "./dom.js";
import { readLines } from "./lines.js";
import { failed, loading } from "./states.js";
import { copyButton, plain, quote } from "./text.js";

const IN_BROWSER = "in a browser on the gateway's machine";
/** @type {Record<string, [string, any][]>} kind -> what can be chosen, with the body of the request */
const WAYS = {
  kiro: [["Builder ID, with a code", {}], ["Organisation, with a code", { start_url: "", region: "" }], [`Google, ${IN_BROWSER}`, { method: "browser", social: "google" }], [`GitHub, ${IN_BROWSER}`, { method: "browser", social: "github" }]],
  codex: [["With a code", {}], [`ChatGPT, ${IN_BROWSER}`, { method: "browser" }]],
  copilot: [["With a code", { client_id: "" }]],
};
/** @type {Record<string, string>} */
const LABELS = { start_url: "Start page of the organisation (https://…)", region: "Region, if it is not us-east-1", client_id: "Client id of your OAuth app, if providers.copilot.client_id is not set" };

export class SignIn {
  /** @param {AbortSignal} signal of the page @param {() => void} done */
  constructor(signal, done) {
    this.signal = signal;
    this.done = done;
    this.node = h("div.sign-in-card", { role: "status" });
    this.buttons = Object.keys(WAYS).map((kind) => h("button", { type: "button", onclick: () => this.choose(kind) }, `Sign in to ${kind}`));
    /** @type {AbortController | null} */
    this.control = null;
    signal.addEventListener("abort", () => this.control?.abort());
  }

  /** Whether there is a sign-in for this kind of provider. @param {string} kind */
  offers(kind) { return kind in WAYS; }

  /** Ask how to sign in. @param {string} kind */
  choose(kind) {
    const ways = WAYS[kind];
    if (!ways) return;
    this.control?.abort();
    const select = h("select", { id: "way" }, ways.map(([name], index) => h("option", { value: String(index) }, name)));
    const fields = h("div");
    const draw = () => show(fields, Object.entries(ways[Number(select.value)][1]).filter(([, value]) => value === "").map(([name]) => [h("label", { for: name }, LABELS[name]), h("input", { id: name, name, autocomplete: "off", spellcheck: "false" })]).flat());
    select.addEventListener("change", draw);
    draw();
    const form = h("form.card", {
      onsubmit: (/** @type {Event} */ event) => {
        event.preventDefault();
        const given = [...fields.querySelectorAll("input")].map((input) => [input.name, input.value.trim()]);
        void this.run(kind, { ...ways[Number(select.value)][1], ...Object.fromEntries(given) });
      },
    }, h("h2", null, `Sign in to ${plain(kind)}`), h("label", { for: "way" }, "How"), select, fields,
      h("div.bar.below", null, h("button.primary", { type: "submit" }, "Start"), h("button", { type: "button", onclick: () => show(this.node) }, "Cancel")));
    show(this.node, form);
    select.focus();
  }

  /** @param {string} kind @param {Record<string, string>} options */
  async run(kind, options) {
    this.control = new AbortController();
    const { signal } = this.control;
    show(this.node, loading(`Starting the sign-in to ${plain(kind)}…`));
    const body = Object.fromEntries(Object.entries({ kind, ...options }).filter(([, value]) => value));
    try {
      const response = await send("POST", "/api/v1/accounts/sign-in", body, { signal });
      for await (const event of readLines(response)) this.on(kind, event);
    } catch (error) {
      if (!signal.aborted) show(this.node, failed(error, () => this.choose(kind)));
    }
  }

  /** @param {string} kind @param {any} event */
  on(kind, event) {
    if (event.event === "prompt") this.prompt(kind, event);
    else if (event.event === "waiting") {
      const wait = this.node.querySelector(".wait");
      if (wait) wait.textContent = `Waiting for you to confirm, ${Math.round(event.seconds)} s left…`;
    } else if (event.event === "signed_in") {
      show(this.node, h("p.notice.good", null, `Signed in to ${plain(event.provider)}.`, event.use === "overridden" ? ` It is not used: ${plain(event.overridden_by)} is configured instead.` : ""));
      this.done();
    } else if (event.event === "failed") {
      show(this.node, h("p.notice.bad", { role: "alert" }, quote(event.message, 1000), " ", h("button.quiet", { type: "button", onclick: () => this.choose(kind) }, "Try again")));
    }
  }

  /** @param {string} kind @param {{link: string, code?: string}} prompt */
  prompt(kind, prompt) {
    const cancel = h("button", { type: "button", onclick: () => { this.control?.abort(); show(this.node); } }, "Cancel");
    show(this.node, h("section.card", null, h("h2", null, `Sign in to ${plain(kind)}`),
      h("p", null, prompt.code ? "Open this address on any device and enter the code." : "Open this address in a browser on the gateway's machine: it is sent back there."),
      h("div.bar", null, h("code", null, plain(prompt.link)), copyButton(() => prompt.link, "Copy address")),
      prompt.code ? h("div.bar", null, h("strong.mono", null, plain(prompt.code)), copyButton(() => prompt.code || "", "Copy code")) : null,
      h("p.soft.wait", null, "Waiting for you to confirm…"), cancel));
    announce(prompt.code ? `The code is ${prompt.code}` : "Open the address to sign in.");
  }
}

// Models: who answers what, and how well? With one prompt to several models, side by side.

import { keepInAddress } from "../address.js";
import { get, send } from "../api.js";
import { announce, h, setText, show } from "../dom.js";
import { duration, exactTime, money, tokens } from "../format.js";
import { readEvents } from "../lines.js";
import { empty, fill } from "../states.js";
import { lines, plain, quote } from "../text.js";

export const title = "Models";
const SHOWN = 300;

/** @param {{query: URLSearchParams}} address @returns {import("../main.js").Page} */
export function open({ query }) {
  const place = h("div");
  const trial = new Trial(query.getAll("try"), query.get("prompt") || "");
  void fill(place, () => get("/api/v1/models"), (data) => {
    trial.setModels(data.models);
    return h("div", null, problems(data.providers), trial.node, routes(data.routes), catalogue(data.models));
  });
  return { node: place, close: () => trial.stop() };
}

/** @param {any[]} providers */
function problems(providers) {
  return providers.filter((one) => one.problem).map((one) => h("p.notice", null, `The models of ${plain(one.name)} could not be listed: `, quote(one.problem, 500)));
}

/** @param {any[]} list */
function routes(list) {
  const section = h("section", null, h("h2", null, "Routes, the first match wins"));
  if (!list.length) {
    section.append(h("p.soft", null, "None are configured: clients use the names below, or provider/model."));
    return section;
  }
  section.append(h("div.scroll", { tabindex: "0" }, h("table", null, h("caption.unseen", null, "Routes"),
    h("thead", null, h("tr", null, h("th", { scope: "col" }, "Requested name"), h("th", { scope: "col" }, "Targets, in order"))),
    h("tbody", null, list.map((route) => h("tr", null, h("th.text", { scope: "row" }, h("code", null, plain(route.name))), h("td", null, route.targets.map(target))))))));
  return section;
}

/** @param {any} one @param {number} index */
function target(one, index) {
  const cooldown = one.cooling_down_until ? h("span.warn", { title: exactTime(one.cooling_down_until * 1000) }, " ▲ cooling down") : null;
  return h("div", null, `${index + 1}. `, quote(`${one.provider}/${one.model}`), cooldown);
}

/** @param {any[]} models */
function catalogue(models) {
  const input = h("input.grow", { type: "search", placeholder: "Find a model", "aria-label": "Find a model" });
  const body = h("tbody");
  const note = h("p.soft");
  const draw = () => {
    const found = models.filter((one) => `${one.provider}/${one.model} ${one.name}`.toLowerCase().includes(input.value.toLowerCase()));
    show(body, found.slice(0, SHOWN).map((one) => h("tr", null,
      h("th.text", { scope: "row" }, quote(one.model), one.name && one.name !== one.model ? h("div.soft", null, quote(one.name)) : null),
      h("td", null, plain(one.provider)), h("td.text", null, one.names.map((/** @type {string} */ name) => [h("code", null, plain(name)), " "]).flat()),
      h("td.number", null, tokens(one.max_input)), h("td.number", null, tokens(one.max_output)),
      ["input", "output", "cache_read"].map((kind) => h("td.number", null, one.usd_per_million ? (one.usd_per_million[kind] === null ? "as input" : money(one.usd_per_million[kind])) : "no price")))));
    setText(note, found.length > SHOWN ? `${found.length} models, the first ${SHOWN} are shown.` : `${found.length} models`);
  };
  input.addEventListener("input", draw);
  draw();
  if (!models.length) return empty("No models", "No provider has listed any. ", h("a", { href: "/console/doctor" }, "Doctor"), " says why.");
  return h("section", null, h("h2", null, "Catalogue"), h("div.bar", null, input), note, h("div.scroll", { tabindex: "0" }, h("table", null, h("caption.unseen", null, "Models"),
    h("thead", null, h("tr", null, ["Model", "Provider", "Names for clients"].map((name) => h("th", { scope: "col" }, name)),
      ["Window", "Longest reply", "$/M in", "$/M out", "$/M cached"].map((name) => h("th.number", { scope: "col" }, name)))), body)));
}

class Trial {
  /** @param {string[]} chosen @param {string} prompt */
  constructor(chosen, prompt) {
    this.chosen = new Set(chosen);
    /** @type {Map<string, any>} */
    this.models = new Map();
    this.control = new AbortController();
    this.prompt = h("textarea", { id: "prompt", rows: "3", placeholder: "One prompt, sent to every chosen model" });
    this.prompt.value = prompt;
    this.picker = h("select", { id: "pick", onchange: () => this.add(this.picker.value) });
    this.picked = h("div.bar");
    this.button = h("button.primary", { type: "submit" }, "Send");
    this.answers = h("div.answers");
    this.node = h("section.card", null, h("h2", null, "Try it"), h("form", {
      onsubmit: (/** @type {Event} */ event) => { event.preventDefault(); void this.run(); },
    }, h("label", { for: "prompt" }, "Prompt"), this.prompt, h("label", { for: "pick" }, "Add a model"), this.picker, this.picked, h("div.bar", null, this.button,
      h("span.soft", null, "Costs what a client's request costs, and counts for the key that is signed in. Usage names the client \"console\"."))), this.answers);
  }

  /** @param {any[]} models */
  setModels(models) {
    for (const one of models) this.models.set(one.names[0] || `${one.provider}/${one.model}`, one);
    show(this.picker, h("option", { value: "" }, "Choose…"), [...this.models.keys()].map((name) => h("option", { value: name }, plain(name))));
    if (!this.chosen.size && this.models.size === 1) this.chosen.add([...this.models.keys()][0]);
    this.drawPicked();
  }

  /** @param {string} name */
  add(name) {
    if (name) this.chosen.add(name);
    this.picker.value = "";
    this.drawPicked();
  }

  drawPicked() {
    show(this.picked, [...this.chosen].map((name) => h("button", { type: "button", title: "Remove", onclick: () => { this.chosen.delete(name); this.drawPicked(); } }, `${plain(name)} ✕`)));
    this.button.disabled = !this.chosen.size;
  }

  stop() { this.control.abort(); }

  async run() {
    keepInAddress({});
    this.stop();
    this.control = new AbortController();
    const { signal } = this.control;
    this.button.disabled = true;
    this.answers.replaceChildren();
    await Promise.all([...this.chosen].map((name) => this.ask(name, signal)));
    this.button.disabled = false;
    announce("All models have answered.");
  }

  /** @param {string} name @param {AbortSignal} signal */
  async ask(name, signal) {
    const text = h("pre.text", { tabindex: "0", role: "region", "aria-label": `Answer of ${plain(name)}` });
    const facts = h("p.soft", null, "Waiting…");
    this.answers.append(h("article.answer", null, h("h3", null, plain(name)), text, facts));
    const began = performance.now();
    let written = "";
    /** @type {any} */
    let usage = null;
    let first = 0;
    try {
      const body = { model: name, stream: true, stream_options: { include_usage: true }, messages: [{ role: "user", content: this.prompt.value }] };
      const response = await send("POST", "/v1/chat/completions", body, { headers: { "x-dragoman-explain": "1" }, signal });
      const head = response.headers;
      for await (const data of readEvents(response)) {
        if (data === "[DONE]") break;
        const event = JSON.parse(data);
        if (event.error) throw new Error(event.error.message);
        const delta = event.choices?.[0]?.delta?.content || "";
        if (delta && !first) first = performance.now() - began;
        written += delta;
        usage = event.usage || usage;
        setText(text, lines(written));
        setText(facts, `${duration(performance.now() - began)}…`);
      }
      show(facts, this.describe(name, usage, first, performance.now() - began), this.losses(head), ` Route ${plain(head.get("x-dragoman-route") || "unknown")}.`,
        " ", h("a", { href: `/console/inspect/${encodeURIComponent(head.get("x-request-id") || "")}` }, "Inspect"));
    } catch (error) {
      if (signal.aborted) return setText(facts, "Stopped.");
      show(facts, h("span.bad", null, `✕ ${plain(/** @type {Error} */ (error).message)}`));
    }
  }

  /** @param {string} name @param {any} usage @param {number} first @param {number} total */
  describe(name, usage, first, total) {
    const price = this.models.get(name)?.usd_per_million;
    const parts = [`First token ${duration(first)}, all ${duration(total)}`];
    if (usage) parts.push(`${tokens(usage.prompt_tokens)} in, ${tokens(usage.completion_tokens)} out`);
    if (usage && price) parts.push(`≈ ${money((usage.prompt_tokens * price.input + usage.completion_tokens * price.output) / 1e6)}`);
    else parts.push("no price");
    return `${parts.join(" · ")}.`;
  }

  /** @param {Headers} head */
  losses(head) {
    const count = head.get("x-dragoman-loss");
    if (count === null) return " Passed unchanged.";
    if (count === "0") return " Nothing was lost.";
    /** @type {any[]} */
    const list = JSON.parse(head.get("x-dragoman-loss-detail") || "[]");
    return h("details", null, h("summary", null, `${count} lost in translation`), h("ul", null, list.map((loss) => h("li", null, h("code", null, plain(loss.path)), ` ${plain(loss.how)}: `, quote(loss.why, 300)))));
  }
}

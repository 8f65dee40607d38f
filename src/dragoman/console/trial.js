// One prompt to several models, side by side: text as it streams, then time, tokens, cost and losses.

import { inspectAddress, keepInAddress } from "./address.js";
import { get, send } from "./api.js";
import { announce, h, setText, show } from "./dom.js";
import { duration } from "./format.js";
import { readEvents } from "./lines.js";
import { lines, plain, quote } from "./text.js";
import { costText, sourceHint, tokenText } from "./words.js";

const ROW_ATTEMPTS = 8;
const ROW_WAIT_MS = 250;
const LONGEST_PROMPT = 2000; // in the address
const KEEP_MS = 300; // after the last letter

export class Trial {
  /** @param {string[]} chosen names of models @param {string} prompt */
  constructor(chosen, prompt) {
    this.chosen = new Set(chosen);
    this.control = new AbortController();
    this.prompt = h("textarea", { id: "prompt", rows: "3", placeholder: "One prompt, sent to every chosen model" });
    this.prompt.value = prompt;
    /** @type {number | undefined} */
    this.timer = undefined;
    this.prompt.addEventListener("change", () => this.keep());
    this.prompt.addEventListener("input", () => {
      clearTimeout(this.timer);
      this.timer = setTimeout(() => this.keep(), KEEP_MS);
    });
    this.names = h("datalist", { id: "names" });
    this.input = h("input", { id: "pick", list: "names", autocomplete: "off", spellcheck: "false", placeholder: "A name that a client would use" });
    this.input.addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => {
      if (event.key !== "Enter") return;
      event.preventDefault();
      this.add(this.input.value);
    });
    this.input.addEventListener("input", (/** @type {InputEvent} */ event) => {
      const isChosen = event.inputType === undefined || event.inputType === "insertReplacementText"; // from the list, not typed
      if (isChosen && [...this.names.options].some((one) => one.value === this.input.value)) this.add(this.input.value);
    });
    this.picked = h("div.bar");
    this.button = h("button.primary", { type: "submit" }, "Send");
    this.end = h("button", { type: "button", hidden: true, onclick: () => this.stop() }, "Stop");
    this.answers = h("div.answers");
    this.node = h("section.card", null, h("h2", null, "Try it"), h("form", {
      onsubmit: (/** @type {Event} */ event) => { event.preventDefault(); void this.run(); },
    }, h("label", { for: "prompt" }, "Prompt"), this.prompt, h("label", { for: "pick" }, "Add a model"),
      h("div.bar", null, this.input, this.names, h("button", { type: "button", onclick: () => this.add(this.input.value) }, "Add")), this.picked, h("div.bar", null, this.button, this.end,
        h("span.soft", null, "Costs what a client's request costs, and counts for the key that is signed in. Usage names the client \"console\"."))), this.answers);
  }

  /** @param {string[]} names that clients can use; a glob of a route is completed by hand */
  setNames(names) {
    show(this.names, names.map((name) => h("option", { value: name })));
    if (!this.chosen.size && names.length === 1) this.chosen.add(names[0]);
    this.drawPicked();
  }

  /** @param {string} name */
  add(name) {
    if (name.trim()) this.chosen.add(name.trim());
    this.input.value = "";
    this.drawPicked();
    this.keep();
  }

  /** Keep what was typed in the address, so that it is there after a visit to another page. */
  keep() {
    keepInAddress({ try: [...this.chosen], q: new URLSearchParams(location.search).get("q") || "" }, { prompt: this.prompt.value.slice(0, LONGEST_PROMPT) });
  }

  drawPicked() {
    show(this.picked, this.chosen.size ? [...this.chosen].map((name) => h("button", { type: "button", title: "Remove", onclick: () => { this.chosen.delete(name); this.drawPicked(); this.keep(); } }, `${plain(name)} ✕`))
      : h("span.soft", null, "Choose two or more to compare them."));
    this.button.disabled = !this.chosen.size;
  }

  stop() {
    clearTimeout(this.timer);
    this.control.abort();
  }

  async run() {
    this.keep();
    this.stop();
    this.control = new AbortController();
    const { signal } = this.control;
    this.button.disabled = true;
    this.end.hidden = false;
    this.answers.replaceChildren();
    await Promise.all([...this.chosen].map((name) => new Answer(name, this.prompt.value, this.answers).run(signal)));
    this.button.disabled = false;
    this.end.hidden = true;
    announce("All models have answered.");
  }
}

class Answer {
  /** @param {string} model @param {string} prompt @param {Element} place */
  constructor(model, prompt, place) {
    this.model = model;
    this.prompt = prompt;
    this.text = h("pre.text", { tabindex: "0", role: "region", "aria-label": `Answer of ${plain(model)}` });
    this.state = h("p.soft", null, "Waiting…");
    place.append(h("article.answer", null, h("h3", null, plain(model)), this.text, this.state));
  }

  /** @param {AbortSignal} signal */
  async run(signal) {
    const began = performance.now();
    try {
      const body = { model: this.model, stream: true, stream_options: { include_usage: true }, messages: [{ role: "user", content: this.prompt }] };
      const response = await send("POST", "/v1/chat/completions", body, { headers: { "x-dragoman-explain": "1" }, signal });
      await this.read(response, began);
      await this.report(response.headers, performance.now() - began);
    } catch (error) {
      if (signal.aborted) return setText(this.state, "Stopped.");
      show(this.state, h("span.bad", null, `✕ ${plain(/** @type {Error} */ (error).message)}`));
    }
  }

  /** @param {Response} response @param {number} began */
  async read(response, began) {
    let written = "";
    for await (const data of readEvents(response)) {
      if (data === "[DONE]") break;
      const event = JSON.parse(data);
      if (event.error) throw new Error(event.error.message);
      written += event.choices?.[0]?.delta?.content || "";
      setText(this.text, lines(written));
      setText(this.state, `${duration(performance.now() - began)}…`);
    }
  }

  /** @param {Headers} head @param {number} total */
  async report(head, total) {
    const id = head.get("x-dragoman-request-id") || "";
    const row = await findRow(id);
    const facts = [
      ["First token", duration(row?.ttft_ms)],
      ["In all", duration(row?.duration_ms ?? total)],
      ["Tokens", row ? h("span", { title: sourceHint(row.usage_source) }, `${tokenText(row.input_tokens, row.usage_source)} in, ${tokenText(row.output_tokens, row.usage_source)} out`) : "–"],
      ["Cost", row ? costText(row.cost_usd, row.usage_source) : "–"],
      ["Route", plain(head.get("x-dragoman-route") || "unknown")],
      ["Losses", losses(head, row)],
    ];
    this.state.replaceWith(h("dl.facts", null, facts.map(([name, value]) => [h("dt", null, name), h("dd", null, value)]).flat()), h("p", null, h("a", { href: inspectAddress(id) }, "Inspect")));
  }
}

/** The usage row of a request, which is written a moment after its response. @param {string} id @returns {Promise<any>} */
async function findRow(id) {
  for (let attempt = 0; attempt < ROW_ATTEMPTS; attempt++) {
    const found = await get("/api/v1/requests", { q: `request_id:"${id}"`, limit: 1 }).catch(() => ({ requests: [] }));
    if (found.requests.length) return found.requests[0];
    await new Promise((resolve) => setTimeout(resolve, ROW_WAIT_MS));
  }
  return null;
}

/** @param {Headers} head @param {any} row */
function losses(head, row) {
  if (head.get("x-dragoman-loss") === null) return "none: the bytes passed unchanged";
  const count = Math.max(Number(head.get("x-dragoman-loss")), row?.losses ?? 0);
  /** @type {any[]} */
  const list = JSON.parse(head.get("x-dragoman-loss-detail") || "[]");
  if (!count) return "none";
  return h("details", null, h("summary", null, String(count)), h("ul", null, list.map((loss) => h("li", null, h("code", null, plain(loss.path)), ` ${plain(loss.how)}: `, quote(loss.why, 300)))));
}

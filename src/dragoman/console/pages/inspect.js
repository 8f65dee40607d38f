// Inspector: why did this reply look so? For a request under way, or one that was captured.

import { go, mayOpen } from "../address.js";
import { ApiError, get, send, session } from "../api.js";
import { announce, h, setText, show } from "../dom.js";
import { feed } from "../feed.js";
import { ago, bytes, duration, exactTime } from "../format.js";
import { diffView, jsonView } from "../json.js";
import { empty, failed, loading } from "../states.js";
import { Timeline } from "../timeline.js";
import { copyButton, plain, quote } from "../text.js";
import { cacheText, costText, outcomeMark, protocols, stateMark, tokenText } from "../words.js";

export const title = "Inspector";
const NOT_CAPTURED = "This request was not captured. Set debug.capture to errors or all, and send it again.";
const NO_RIGHT = "This request is captured, and this key may not read captures: they hold what was asked and answered. Sign in with the owner's key, or with an admin token that has the scope captures:read.";
const UNKNOWN = "No request with this id is known: its row was removed, or the address is not complete.";
const UNKNOWN_HERE = "No request with this id is known to this key: it is another key's, its row was removed, or the address is not complete.";
/** @type {Record<string, string>} state -> what a request in it waits for */
const WAITS = { waiting: "the first token of", "running tools": "the tools that were called by" };
const STALL_MS = 5000; // without a frame
const CAPTURE_MS = [0, 250, 500, 1000, 2000, 4000]; // a capture is written a moment after the end
const LATE = "This request was not recorded when it began. Its stream is shown from the moment in which you opened this page.";
const LEFT_OUT = /^(authorization|x-api-key|x-goog-api-key|cookie|host|content-length|connection|transfer-encoding|accept-encoding)$/i;

/** @param {{rest: string[]}} address @returns {Promise<import("../main.js").Page>} */
export async function open({ rest }) {
  const view = new Inspector(rest[0] || "");
  await view.load();
  view.keys.Escape = () => (history.state?.within ? history.back() : go("/console/requests"));
  return { node: view.node, close: () => view.close(), keys: view.keys };
}

class Inspector {
  /** @param {string} id */
  constructor(id) {
    this.id = id;
    this.timeline = new Timeline();
    /** @type {any} */
    this.row = null;
    /** @type {any} */
    this.description = null;
    this.isLive = false;
    this.isClosed = false;
    this.began = h("span");
    this.clock = h("span");
    /** @type {number | undefined} */
    this.timer = undefined;
    /** @type {Record<string, string>} names of keys by their ids */
    this.names = {};
    this.head = h("div", null, loading());
    this.losses = h("div");
    this.cache = h("div", { role: "status" });
    this.askCache = h("button", { type: "button", onclick: async () => (await import("../cache.js")).explainCache(this.id, this.cache) }, "Explain the cache");
    this.details = h("div");
    this.problem = h("div");
    this.followEnd = h("button", { type: "button", hidden: true, "aria-pressed": "false", onclick: () => this.toggleEnd() }, "Follow the end");
    this.node = h("div", null, this.head, this.cache, this.losses, h("div.bar.heading", null, h("h2", null, "Stream"), this.followEnd), this.problem, this.timeline.node, this.details);
    /** @type {[string, EventListener][]} */
    this.heard = [];
    /** @type {Record<string, () => void>} */
    this.keys = {};
  }

  async load() {
    if (!this.id) return this.explainUnknown();
    try {
      if (session.may("captures:read")) this.description = await describeLive(this.id);
      if (this.description || !(await this.loadPast())) this.follow();
    } catch (error) {
      if (!(error instanceof ApiError && error.status === 400)) throw error;
      this.explainUnknown(); // it cannot be an id at all
    }
  }

  explainUnknown() {
    this.draw();
    this.explain(session.about.role === "client" ? UNKNOWN_HERE : UNKNOWN, "There is no such request");
  }

  /** Show a request that has ended; false if there is none. */
  async loadPast() {
    const past = await this.findRow();
    if (!past) return false;
    this.row = { ...past, time: Date.parse(past.time), state: "ended", failed_attempts: [] };
    if (past.captured && session.may("captures:read")) {
      this.description = await get(`/api/v1/captures/${encodeURIComponent(this.id)}`);
      this.timeline.add(this.description.timeline);
      await this.loadRest();
    } else this.explain(past.captured ? NO_RIGHT : NOT_CAPTURED);
    this.draw();
    return true;
  }

  /** The stored row of the request; undefined if there is none. */
  async findRow() {
    const page = await get("/api/v1/requests", { q: `request_id:"${this.id.replaceAll('"', "")}"`, limit: 1 });
    this.names = { ...this.names, ...page.names };
    return page.requests[0];
  }

  /** @param {string} why @param {string} [title] */
  explain(why, title = "There is no stream to show") {
    this.timeline.node.hidden = true;
    show(this.problem, empty(title, why));
  }

  /** A long timeline comes in pages. */
  async loadRest() {
    for (let next = this.description.next; next !== null && next !== undefined && this.timeline.entries.length < 20_000;) {
      const page = await get(`/api/v1/captures/${encodeURIComponent(this.id)}`, { first: next });
      this.timeline.add(page.timeline);
      next = page.next;
    }
  }

  /** Watch the request in the feed. */
  follow() {
    this.isLive = true;
    this.keys.f = () => this.toggleEnd();
    this.hear("hello", (event) => { this.names = event.detail.names; });
    this.hear("frames", (event) => this.onFrames(event.detail));
    this.hear("rows", (event) => this.onRows(event.detail.rows));
    this.hear("state", () => this.onState());
    feed.watch({ watch: "live", frames: this.id });
    this.timer = setInterval(() => this.drawClock(), 1000);
    this.draw();
  }

  /** @param {string} name @param {(event: CustomEvent) => void} react */
  hear(name, react) {
    const listener = /** @type {EventListener} */ (react);
    feed.addEventListener(name, listener);
    this.heard.push([name, listener]);
  }

  close() {
    this.isClosed = true;
    clearInterval(this.timer);
    for (const [name, listener] of this.heard) feed.removeEventListener(name, listener);
    if (this.isLive) feed.stop();
  }

  /** @param {any} frames */
  onFrames(frames) {
    if (frames.request_id !== this.id) return;
    if (frames.problem) {
      if (this.row || this.description) this.explain(frames.problem);
      else this.explainUnknown();
      return;
    }
    this.timeline.node.hidden = false;
    if (frames.first) this.timeline.clear();
    show(this.problem, frames.late && h("p.notice", null, LATE),
      !frames.with_content && h("p.notice", null, "This key sees times and sizes, not content: that needs the right captures:read."));
    this.timeline.add(frames.entries, frames.dropped);
    this.showEnd();
  }

  /** Keep the newest frame in view, or no longer. */
  toggleEnd() {
    this.followEnd.setAttribute("aria-pressed", String(this.followEnd.getAttribute("aria-pressed") !== "true"));
    this.showEnd();
  }

  showEnd() {
    if (this.followEnd.getAttribute("aria-pressed") === "true") this.timeline.list.lastElementChild?.scrollIntoView({ block: "end" });
  }

  /** @param {any[]} rows */
  onRows(rows) {
    for (const row of rows) {
      if (this.row ? row.number !== this.row.number : row.request_id !== this.id) continue;
      const before = this.row;
      this.row = { ...before, ...row };
      this.draw();
      if (row.state !== "ended" || before?.state === "ended") continue;
      if (before) announce(`The request ended: ${this.row.outcome}`);
      void this.finish();
    }
  }

  /** The request has ended: its losses and its outcome are final now, and its capture is being written. */
  async finish() {
    clearInterval(this.timer);
    if (!session.may("captures:read")) return;
    this.description = (await describeLive(this.id)) || this.description;
    this.draw();
    for (const wait of CAPTURE_MS) {
      await new Promise((resolve) => setTimeout(resolve, wait));
      if (this.isClosed) return;
      const past = await this.findRow().catch(() => null);
      if (!past?.captured) continue;
      this.row.captured = true;
      this.draw();
      return;
    }
  }

  /** How long the request has taken; one under way that gets nothing says what it waits for. */
  drawClock() {
    const { row } = this;
    const isOver = !row || row.state === "ended";
    const time = row?.time ?? this.description?.summary.time;
    if (time === undefined) return;
    setText(this.began, `${exactTime(time)}, ${ago(time)}`);
    const passed = isOver ? row?.duration_ms ?? this.description?.summary.duration_ms : Date.now() - row.time;
    const silent = passed - Math.max(0, this.timeline.last) * 1000;
    setText(this.clock, [duration(passed), row?.ttft_ms ? `first token after ${duration(row.ttft_ms)}` : "",
      !isOver && silent > STALL_MS ? `nothing for ${duration(silent)}: waiting for ${WAITS[row.state] || "the rest of the reply of"} ${plain(row.route || "an upstream")}` : ""].filter(Boolean).join(", "));
  }

  onState() {
    if (feed.state === "stale" || feed.state === "refused") show(this.problem, h("p.notice", null, `Not live: ${plain(feed.problem)}`));
    else if (feed.state === "live") show(this.problem);
  }

  draw() {
    const { description, row } = this;
    if (!description && !row) {
      show(this.head, h("p", null, "Request ", h("code", null, plain(this.id))));
      return;
    }
    const summary = description?.summary || {};
    const state = row ? (row.state === "ended" ? row.outcome : row.state) : summary.outcome;
    const facts = [
      ["Request", h("span", null, h("code", null, plain(this.id)), " ", copyButton(() => this.id, "Copy id"))],
      ["Client's own id", plain(row?.client_request_id || summary.client_request_id || "")],
      ["State", row?.state === "ended" ? outcomeMark(row) : stateMark(state)],
      ["Client", quote(row?.client || summary.client || "unknown")],
      ["Key", row?.key ? quote(this.names[row.key] || row.key) : null],
      ["Model", row?.requested_model ? quote(row.requested_model) : null],
      ["Route", h("span", null, quote(row?.route || summary.route || "none yet"), ` (${row ? protocols(row) : plain(summary.protocols)})`)],
      whyFact(description?.why),
      ["Time", this.began],
      ["Duration", this.clock],
      ["Cost", row && row.cost_usd !== undefined ? costText(row.cost_usd, row.usage_source) : null],
      ["Tokens", row ? `${tokenText(row.input_tokens, row.usage_source)} in, ${tokenText(row.output_tokens, row.usage_source)} out` : null],
      ["Session", row?.session ? quote(row.session) : null],
      ["Prompt cache", row && cacheText(row) ? h("span", null, cacheText(row), " ", session.may("captures:read") && this.hasEnded() ? this.askCache : null) : null],
      ["Read from the upstream", this.hasEnded() && summary.upstream_chunks ? `${bytes(summary.upstream_bytes)} in ${summary.upstream_chunks} chunk${summary.upstream_chunks === 1 ? "" : "s"}` : null],
      ["Earlier attempts", row?.failed_attempts?.length ? row.failed_attempts.map(plain).join("; ") : null],
    ].filter(([, value]) => value !== null && value !== "");
    this.drawClock();
    this.followEnd.hidden = !this.isLive || state === row?.outcome;
    show(this.head, h("dl.facts.card", null, facts.map(([name, value]) => [h("dt", null, name), h("dd", null, value)]).flat()),
      description?.failure && h("p.notice.bad", null, "Failure: ", quote(description.failure, 1000)));
    if (description && !this.busy()) this.drawDetails(description);
    this.showEnd();
  }

  /** Whether nothing more comes: only then is what was read all of it. */
  hasEnded() {
    return !this.row || this.row.state === "ended";
  }

  /** Whether the details are in use, by focus or selection: then they are not drawn again. */
  busy() {
    const reads = [this.losses, this.details].some((place) => place.contains(document.activeElement));
    return reads && this.row && this.row.state !== "ended";
  }

  /** @param {any} description */
  drawDetails(description) {
    const request = jsonView(description.request.body, "Request as the client sent it");
    const sent = description.upstream_requests;
    show(this.losses, lossList(description.losses, request), this.actions(description));
    show(this.details,
      description.truncated.length ? h("p.notice", null, `Not kept completely: ${description.truncated.map(plain).join(", ")}.`) : null,
      attempts(sent),
      h("h2", null, "Request as the client sent it"),
      h("p.soft", null, `${plain(description.request.method)} ${plain(description.request.url)}, ${bytes(description.request.body.length)}`), request.node,
      headerTable("Headers of the client", description.request.headers),
      sent.map((/** @type {any} */ one, /** @type {number} */ index) => sentRequest(description, one, index, sent.length)),
      h("h2", null, "Response to the client"),
      headerTable(`Headers, status ${description.status ?? "none"}`, description.headers));
  }

  /** @param {any} description */
  actions(description) {
    const result = h("div", { role: "status" });
    const replay = async () => {
      show(result, loading("Running the request through the current code…"));
      try {
        show(result, replayed(await (await send("POST", `${capturePath(this.id)}/replay`, {})).json()));
      } catch (error) {
        show(result, failed(error));
      }
    };
    const save = async () => {
      try {
        const blob = await (await send("POST", `${capturePath(this.id)}/fixture`, {})).blob();
        const link = h("a", { href: URL.createObjectURL(blob), download: `${this.id.replace(/[^\w.-]/g, "_")}.json` });
        link.click();
        setTimeout(() => URL.revokeObjectURL(link.href), 1000);
        show(result, h("p.notice.good", null, "Saved. Put it into tests/fixtures/captures of a checkout, and tests/test_captures.py runs it."));
      } catch (error) {
        show(result, failed(error));
      }
    };
    this.keys.r = () => { if (this.row?.captured) void replay(); };
    const prompt = lastText(description.request.body);
    return h("div", null, h("div.bar", null, this.row?.captured ? [h("button", { type: "button", onclick: replay }, "Replay"), h("button", { type: "button", onclick: save }, "Make a fixture")] : null,
      copyButton(() => curl(description.request), "Copy as cURL"), copyButton(() => JSON.stringify(description, null, 2), "Copy as JSON"),
      prompt && mayOpen("models") ? h("a.button", { href: `/console/models#${new URLSearchParams({ prompt })}` }, "Try again at…") : null), result);
  }
}

/** @param {string | undefined} why "passed; REASON" or "translated; REASON" @returns {[string, string]} */
function whyFact(why) {
  const [how, reason = ""] = (why || "").split("; ");
  return [how === "passed" ? "Why did this pass unchanged?" : "Why was this translated?", plain(reason)];
}

/** What the gateway has in memory of a request. @param {string} id */
async function describeLive(id) {
  return (await get(`/api/v1/live/${encodeURIComponent(id)}`)).description;
}

/** @param {any[]} losses @param {ReturnType<typeof jsonView>} request */
function lossList(losses, request) {
  if (!losses.length) return h("p.none-lost", null, h("span.mark.ok", { "aria-hidden": "true" }, "●"), " Nothing was lost in translation.");
  return h("section.losses", null, h("h2", null, `Lost in translation: ${losses.length}`),
    h("ul", null, losses.map((loss) => h("li", null, h("strong", null, plain(loss.how)), " ",
      h("button.quiet", { type: "button", onclick: () => { if (!request.find(loss.path)) announce("The field is not in the client's request: it is the nearest one above."); } },
        h("code", null, plain(loss.path || "/"))), ": ", quote(loss.why, 500)))));
}

/** @param {any[]} sent */
function attempts(sent) {
  if (sent.length < 2) return null;
  return h("section", null, h("h2", null, `Upstream requests: ${sent.length}`), h("ol", null, sent.map((one) =>
    h("li", null, quote(one.route), ` at ${duration(one.at * 1000)}: ${one.status === null ? "no response" : `HTTP ${one.status}`}`, one.end ? `, ${plain(one.end)}` : ""))));
}

/** @param {any} description @param {any} one @param {number} index @param {number} count */
function sentRequest(description, one, index, count) {
  const name = count > 1 ? `Upstream request ${index + 1}` : "Upstream request";
  return h("section", null, h("h2", null, `${name}: as sent to ${plain(one.route)}`),
    h("details", null, h("summary", null, "Difference to the client's request: − received, + sent"), diffView(description.request.body, one.sent.body, "Difference")),
    h("details", null, h("summary", null, `Body as sent, ${bytes(one.sent.body.length)}, to ${plain(one.sent.url)}`), jsonView(one.sent.body, name).node),
    h("details", null, h("summary", null, "Headers as sent and received"), headerTable("Sent", one.sent.headers), headerTable("Received", one.headers)));
}

/** @param {string} name @param {[string, string][]} headers */
function headerTable(name, headers) {
  if (!headers.length) return null;
  return h("details", null, h("summary", null, name), h("div.scroll", { tabindex: "0" }, h("table", null, h("caption.unseen", null, name),
    h("thead", null, h("tr", null, h("th", { scope: "col" }, "Name"), h("th", { scope: "col" }, "Value"))),
    h("tbody", null, headers.map(([key, value]) => h("tr", null, h("th", { scope: "row" }, plain(key)), h("td", null, quote(value, 500))))))));
}

/** @param {string} id */
function capturePath(id) {
  return `/api/v1/captures/${encodeURIComponent(id)}`;
}

/** @param {any} result */
function replayed(result) {
  announce(result.same ? "The replay is the same." : "The replay is different.");
  return h("section.card", null, h("h2", null, result.same ? "Replay: same" : "Replay: different"), h("ul", null, result.parts.map((/** @type {any} */ part) =>
    h("li", null, h(part.changes.length ? "span.bad" : "span.ok", { "aria-hidden": "true" }, part.changes.length ? "✕ " : "● "), `${plain(part.name)}, ${plain(part.size)}: ${part.changes.length ? `${part.changes.length} differences` : "same"}`,
      part.changes.map((/** @type {any} */ change) => h("div.diff", null, h("div", null, plain(change.place)), h("div.del", null, `- ${plain(change.was)}`), h("div.add", null, `+ ${plain(change.now)}`)))))));
}

/** The last text of a request, as far as the protocols agree on where it is. @param {string} body */
function lastText(body) {
  try {
    const request = JSON.parse(body);
    const input = request.messages || request.input || request.contents;
    const last = Array.isArray(input) ? input[input.length - 1] : input;
    const content = last?.content ?? last?.parts ?? last;
    const text = Array.isArray(content) ? content.map((part) => part.text || "").join("\n") : content;
    return typeof text === "string" ? text.slice(0, 2000) : "";
  } catch {
    return "";
  }
}

/** @param {any} request */
function curl(request) {
  /** @type {[string, string][]} */
  const headers = request.headers.filter((/** @type {[string, string]} */ [name]) => !LEFT_OUT.test(name) && !name.startsWith("x-stainless"));
  const isPacked = request.headers.some((/** @type {[string, string]} */ [name]) => name.toLowerCase() === "accept-encoding");
  const parts = [`curl ${shell(location.origin + request.url)}`, isPacked ? "--compressed" : "", "-H \"Authorization: Bearer $DRAGOMAN_API_KEY\"",
    ...headers.map(([name, value]) => `-H ${shell(`${name}: ${value}`)}`), `--data-raw ${shell(request.body)}`]; // --data-binary would read a file that the body names after an @
  return parts.filter(Boolean).join(" \\\n  ");
}

/** @param {string} text */
function shell(text) {
  return `'${text.replaceAll("'", "'\\''")}'`;
}

// The live feed: one stream for everything that this tab watches, read with fetch because it needs a header.

import { send } from "./api.js";
import { readChunk } from "./lines.js";

const HIDDEN_MS = 30_000;
const SILENT_MS = 30_000; // without a sign of life, which the gateway gives every 15 s
const RETRY_MS = [500, 1000, 2000, 5000, 10_000];

export class Feed extends EventTarget {
  constructor() {
    super();
    /** @type {"idle" | "connecting" | "live" | "stale" | "paused" | "refused"} */
    this.state = "idle";
    this.problem = "";
    this.query = "";
    this.lastId = "";
    this.failures = 0;
    /** @type {AbortController | null} */
    this.control = null;
    /** @type {number | undefined} */
    this.retry = undefined;
    /** @type {number | undefined} */
    this.silence = undefined;
    /** @type {number | undefined} */
    this.hiding = undefined;
    document.addEventListener("visibilitychange", () => this.#visibility());
  }

  /** @param {Record<string, string>} topics what the page watches; empty: nothing */
  watch(topics) {
    const query = new URLSearchParams(topics).toString();
    if (query === this.query && this.control) return;
    this.query = query;
    this.lastId = "";
    this.failures = 0;
    this.#restart();
  }

  stop() {
    this.query = "";
    clearTimeout(this.hiding);
    this.#disconnect();
    this.#set("idle");
  }

  #disconnect() {
    clearTimeout(this.retry);
    clearTimeout(this.silence);
    this.control?.abort();
    this.control = null;
  }

  #restart() {
    this.#disconnect();
    if (!this.query) return this.#set("idle");
    this.control = new AbortController();
    void this.#run(this.control);
  }

  #visibility() {
    clearTimeout(this.hiding);
    if (document.hidden && this.query) {
      this.hiding = setTimeout(() => { this.#disconnect(); this.#set("paused"); }, HIDDEN_MS);
    } else if (this.query && !this.control) this.#restart();
  }

  /** @param {AbortController} control */
  async #run(control) {
    this.#set(this.failures ? "stale" : "connecting");
    this.#hearSign();
    try {
      /** @type {Record<string, string>} */
      const headers = this.lastId ? { "last-event-id": this.lastId } : {};
      const response = await send("GET", `/api/v1/feed?${this.query}`, undefined, { headers, signal: control.signal });
      this.failures = 0;
      this.#set("live");
      if (response.body) await this.#read(response.body);
      throw new Error("The gateway ended the feed.");
    } catch (error) {
      if (control.signal.aborted || control !== this.control) return;
      clearTimeout(this.silence);
      const status = /** @type {any} */ (error).status || 0;
      this.problem = /** @type {Error} */ (error).message;
      if (status === 401 || status === 403 || status === 404) {
        this.control = null;
        this.#set("refused");
        return;
      }
      this.#set("stale");
      this.retry = setTimeout(() => this.#restart(), RETRY_MS[Math.min(this.failures++, RETRY_MS.length - 1)]);
    }
  }

  /** Wait for the next sign of life. A gateway that is frozen, or unreachable, ends no connection. */
  #hearSign() {
    clearTimeout(this.silence);
    this.silence = setTimeout(() => {
      this.problem = `The gateway has sent nothing for ${SILENT_MS / 1000} s.`;
      this.failures++;
      this.#set("stale");
      this.#restart();
    }, SILENT_MS);
  }

  /** @param {ReadableStream<Uint8Array>} body */
  async #read(body) {
    const reader = body.getReader();
    const decoder = new TextDecoder();
    let rest = "";
    for (;;) {
      const { value, done } = await readChunk(reader);
      if (done) return;
      this.#hearSign();
      const events = (rest + decoder.decode(value, { stream: true })).split("\n\n");
      rest = events.pop() || "";
      for (const event of events) this.#event(event);
    }
  }

  /** @param {string} text */
  #event(text) {
    let name = "message";
    let data = "";
    for (const line of text.split("\n")) {
      if (line.startsWith("event: ")) name = line.slice(7);
      else if (line.startsWith("data: ")) data += line.slice(6);
      else if (line.startsWith("id: ")) this.lastId = line.slice(4);
    }
    if (data) this.dispatchEvent(new CustomEvent(name, { detail: JSON.parse(data) }));
  }

  /** @param {Feed["state"]} state */
  #set(state) {
    if (state === this.state) return;
    this.state = state;
    this.dispatchEvent(new Event("state"));
  }
}

export const feed = new Feed();

// Requests: where is the one that went wrong?

import { go, inspectAddress, keepInAddress } from "../address.js";
import { get, send } from "../api.js";
import { announce, h, setText, show } from "../dom.js";
import { ago, duration, exactTime, number } from "../format.js";
import { empty, failed, loading, stale } from "../states.js";
import { Table } from "../table.js";
import { plain } from "../text.js";
import { cacheText, cacheWord, costText, modelCell, outcomeMark, protocols, sourceHint, tokenText } from "../words.js";

export const title = "Requests";
const EXAMPLES = ["outcome:!ok", "after:2h", "ttft>5s", "cost>0.1", "losses>0", "client:claude*", "attempts>1", "cache_miss:*"];

/** @param {{query: URLSearchParams, state: {rows?: number}}} address @returns {import("../main.js").Page} */
export function open({ query, state }) {
  const view = new Requests(query.get("q") || "");
  void view.search(state.rows);
  return { node: view.node, keys: { ...view.table.keys, "/": () => view.input.focus() }, close: () => view.control.abort(), state: () => ({ rows: view.rows.length }) };
}

class Requests {
  /** @param {string} filter */
  constructor(filter) {
    this.control = new AbortController();
    /** @type {any[]} */
    this.rows = [];
    /** @type {Record<string, string>} */
    this.names = {};
    this.next = null;
    this.loaded = new Date();
    this.input = h("input.grow", { type: "search", id: "filter", placeholder: "route:kiro/* outcome:!ok key:ci ttft>5s after:2h", spellcheck: "false", "aria-describedby": "filter-help", autocomplete: "off" });
    this.input.value = filter;
    this.problem = h("p.problem", { role: "alert" });
    this.place = h("div", null, loading());
    this.isLoading = false;
    this.older = h("button", { type: "button", hidden: true, onclick: () => void this.load() }, "Older requests");
    this.count = h("span.soft");
    this.more = h("div.bar", null, this.older, this.count);
    this.notice = h("div");
    this.table = new Table("Requests, newest first", this.columns(), { key: (row) => row.request_id + row.time, open: (row) => go(inspectAddress(row.request_id)) });
    const form = h("form.bar", { role: "search", onsubmit: (/** @type {Event} */ event) => { event.preventDefault(); void this.search(); } },
      h("label.unseen", { for: "filter" }, "Filter"), this.input, h("button.primary", { type: "submit" }, "Search"),
      h("button", { type: "button", onclick: () => this.save("csv") }, "CSV"), h("button", { type: "button", onclick: () => this.save("json") }, "JSON"));
    const help = h("p.soft", { id: "filter-help" }, "Examples: ", EXAMPLES.map((example) => [
      h("button.quiet", { type: "button", onclick: () => { this.input.value = `${this.input.value} ${example}`.trim(); void this.search(); } }, example), " "]).flat());
    this.node = h("div", null, form, this.problem, help, this.place, this.notice, this.more);
  }

  /** @returns {import("../table.js").Column[]} */
  columns() {
    return [
      { title: "Outcome", cell: outcomeMark, hint: (row) => plain(row.error_code || "") },
      { title: "Time", kind: "nowrap", cell: (row) => ago(row.time), hint: (row) => exactTime(row.time) },
      { title: "Model, route", kind: "wide", cell: modelCell },
      { title: "Client", cell: (row) => plain(row.client || "unknown") },
      { title: "Key", cell: (row) => plain(this.names[row.key] || row.key) },
      { title: "Protocols", kind: "nowrap", cell: protocols },
      { title: "First token", kind: "number", cell: (row) => duration(row.ttft_ms) },
      { title: "Duration", kind: "number", cell: (row) => duration(row.duration_ms) },
      { title: "In", kind: "number", cell: (row) => tokenText(row.input_tokens, row.usage_source), hint: (row) => sourceHint(row.usage_source) },
      { title: "Out", kind: "number", cell: (row) => tokenText(row.output_tokens, row.usage_source), hint: (row) => sourceHint(row.usage_source) },
      { title: "Cache", kind: "nowrap", cell: cacheWord, hint: cacheText },
      { title: "Cost", kind: "number", cell: (row) => costText(row.cost_usd, row.usage_source) },
      { title: "Losses", kind: "number", cell: (row) => number(row.losses) },
      { title: "Stream", kind: "nowrap", cell: (row) => (row.captured ? "captured" : "") },
    ];
  }

  /** @param {number} [atLeast] rows to load: those that were shown before */
  async search(atLeast) {
    this.control.abort(); // what an earlier search brings would be among the rows of this one
    this.control = new AbortController();
    this.isLoading = false;
    this.rows = [];
    this.next = null;
    keepInAddress({ q: this.input.value.trim() });
    await this.load(atLeast);
  }

  async load(atLeast = 0) {
    if (this.isLoading) return;
    this.isLoading = true;
    const { signal } = this.control;
    show(this.notice);
    this.problem.textContent = "";
    this.place.setAttribute("aria-busy", "true");
    try {
      let page;
      do {
        page = await get("/api/v1/requests", { q: this.input.value.trim(), cursor: this.next }, signal);
        this.rows.push(...page.requests);
        Object.assign(this.names, page.names);
        this.next = page.next;
      } while (this.next && this.rows.length < atLeast);
      this.loaded = new Date();
      this.draw(page.examined_since);
    } catch (error) {
      if (!signal.aborted) this.fail(error);
    }
    if (signal.aborted) return;
    this.isLoading = false;
    this.place.removeAttribute("aria-busy");
  }

  /** @param {any} error */
  fail(error) {
    if (error.status !== 400 && this.rows.length) return show(this.notice, stale(error, this.loaded, () => void this.load()));
    this.more.hidden = true;
    if (error.status !== 400) return show(this.place, failed(error, () => void this.search()));
    this.problem.textContent = plain(error.message);
    show(this.place);
  }

  /** @param {string} since */
  draw(since) {
    this.table.set(this.rows);
    const filtered = this.input.value.trim();
    show(this.place, this.rows.length ? this.table.node : filtered && this.next ? empty("Nothing found yet", `Searched back to ${exactTime(since)}.`)
      : filtered ? empty("No request matches this filter", "Remove a term, or look further back.") : empty("No requests yet", h("a", { href: "/console/connect" }, "Point a client at this gateway"), "."));
    this.more.hidden = false;
    const hadFocus = document.activeElement === this.older;
    this.older.hidden = !this.next;
    if (hadFocus && !this.next) this.table.body.lastElementChild?.focus();
    setText(this.count, this.rows.length ? `${number(this.rows.length)} shown` : "");
    announce(`${this.rows.length} requests`);
  }

  /** @param {string} format */
  async save(format) {
    try {
      const query = new URLSearchParams({ q: this.input.value.trim(), format });
      const blob = await (await send("GET", `/api/v1/requests/export?${query}`)).blob();
      const link = h("a", { href: URL.createObjectURL(blob), download: `requests.${format}` });
      link.click();
      setTimeout(() => URL.revokeObjectURL(link.href), 1000);
    } catch (error) {
      this.fail(error);
    }
  }
}

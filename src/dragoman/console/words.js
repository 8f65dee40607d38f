// The words and signs of states, outcomes and routes: the same ones on every page.

import { h } from "./dom.js";
import { money, number, percent, tokens } from "./format.js";
import { plain, quote } from "./text.js";

/** @type {Record<string, [string, string]>} state -> sign, colour */
const STATES = {
  waiting: ["○", "soft"], thinking: ["◔", "busy"], streaming: ["◐", "busy"], "tool call": ["◆", "busy"], "running tools": ["◇", "busy"],
  ok: ["●", "ok"], client_gone: ["◌", "soft"],
};

/** @param {string} word */
export function stateMark(word) {
  const [sign, colour] = STATES[word] || ["✕", "bad"];
  const shown = word === "client_gone" ? "client left" : plain(word).replaceAll("_", " ");
  return h("span.nowrap", null, h(`span.mark.${colour}`, { "aria-hidden": "true" }, sign), ` ${shown}`);
}

/** How a request ended, with the code of its error. @param {any} row */
export function outcomeMark(row) {
  const code = row.error_code && row.error_code !== row.outcome ? plain(row.error_code).replaceAll("_", " ") : "";
  return h("span", null, stateMark(row.outcome), code && h("br"), code && h("span.soft", null, code));
}

/** @param {any} row */
export function protocols(row) {
  if (!row.upstream_protocol) return row.client_protocol || "";
  const same = row.passthrough ?? row.client_protocol === row.upstream_protocol;
  return `${row.client_protocol} ${same ? "=" : "→"} ${row.upstream_protocol}`;
}

/** A count of tokens with how it is known. @param {number | null} count @param {string | null} source */
export function tokenText(count, source) {
  if (count === null || count === undefined) return "–";
  return (source === "estimated" ? "≈ " : source === "derived" ? "~ " : "") + tokens(count);
}

/** @param {string | null} source */
export function sourceHint(source) {
  if (source === "estimated") return "Estimated from the size of the text: the upstream reported nothing.";
  if (source === "derived") return "Derived from what the upstream reported.";
  return source ? "Reported by the upstream." : "Not known.";
}

/** @param {number | null | undefined} usd @param {string | null} [source] */
export function costText(usd, source) {
  if (usd === null || usd === undefined) return source ? "no price" : "–";
  return (source && source !== "reported" ? "≈ " : "") + money(usd);
}

/** Output tokens per second after the first token. @param {any} row @param {number} [now] */
export function speed(row, now = Date.now()) {
  if (row.ttft_ms === null || row.ttft_ms === undefined || !row.output_tokens) return null;
  const milliseconds = (row.duration_ms ?? now - row.time) - row.ttft_ms;
  return milliseconds > 50 ? (1000 * row.output_tokens) / milliseconds : null;
}

/** @param {any} row */
export function modelCell(row) {
  const requested = row.requested_model || "–";
  if (!row.route || row.route === requested) return quote(requested);
  return h("span", null, quote(requested), h("br"), h("span.soft", null, quote(row.route)));
}

/** One word: whether the cache had what it could; empty if that is not known. @param {any} row */
export function cacheWord(row) {
  if (row.cache_miss) return plain(row.cache_miss);
  return row.cache_possible_tokens > 0 || row.cache_read_tokens > 0 ? "hit" : "";
}

/** The same in a sentence. @param {any} row */
export function cacheText(row) {
  if (!cacheWord(row)) return "";
  const possible = row.cache_possible_tokens === null || row.cache_possible_tokens === undefined ? "" : ` of ${number(row.cache_possible_tokens)} possible`;
  const saved = row.cache_saved_nano_usd ? `, saved ${money(row.cache_saved_nano_usd / 1e9)}` : "";
  const why = row.cache_miss ? `; miss: ${plain(row.cache_miss)}${row.cache_miss_path ? ` at ${plain(row.cache_miss_path)}` : ""}` : "";
  return `read ${number(row.cache_read_tokens || 0)}${possible} tokens${saved}${why}`;
}

/** How much of what caches could have had they had. @param {any} sum */
export function cacheShare(sum) {
  return sum.cache_possible_tokens ? percent(sum.cache_had_tokens, sum.cache_possible_tokens) : "–";
}

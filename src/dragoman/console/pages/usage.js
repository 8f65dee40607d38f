// Usage: what did it cost, and who used it?

import { keepInAddress } from "../address.js";
import { get, session } from "../api.js";
import { barChart, planWindows } from "../chart.js";
import { h, show } from "../dom.js";
import { ZONE, duration, money, number, percent, tokens } from "../format.js";
import { empty, fill } from "../states.js";
import { plain } from "../text.js";
import { cacheShare } from "../words.js";

export const title = "Usage";
const SLOT_MS = 900_000;
const HOUR_MS = 3_600_000;
const DAY_MS = 24 * HOUR_MS;
/** @type {Record<string, [string, number, number, string, Intl.DateTimeFormatOptions]>} name -> title, its time, hours of one bar, the sums it needs, its labels */
const SPANS = {
  "24h": ["Last 24 hours", DAY_MS, 1, "hour", { hour: "2-digit", minute: "2-digit" }],
  "7d": ["Last 7 days", 7 * DAY_MS, 6, "hour", { weekday: "short", hour: "2-digit" }],
  "30d": ["Last 30 days", 30 * DAY_MS, 24, "day", { day: "numeric", month: "short" }],
};
/** @type {Record<string, string>} */
const GROUPS = { model: "Model", key: "Key", client: "Client", provider: "Provider", team: "Team", user: "User", session: "Session", agent: "Agent", tag: "Tag" };
const OF_UPSTREAMS = ["model", "provider"];
const MOST = 200; // rows of the table

/** @param {{query: URLSearchParams}} address @returns {import("../main.js").Page} */
export function open({ query }) {
  const span = choice("Time", Object.fromEntries(Object.entries(SPANS).map(([name, [text]]) => [name, text])), query.get("span") || "24h");
  const [group, name = ""] = (query.get("by") || "model").split(":", 2);
  const by = choice("By", GROUPS, group);
  const tag = h("input", { "aria-label": "Name of the tag", placeholder: "name of the tag", autocomplete: "off", maxlength: "64", value: name });
  const what = choice("Chart", { cost: "Cost", tokens: "Tokens", requests: "Requests" }, query.get("chart") || "cost");
  const place = h("div");
  const draw = () => {
    tag.hidden = by.value !== "tag";
    const grouped = tag.hidden ? by.value : `tag:${tag.value.trim()}`;
    keepInAddress({ span: span.value, by: grouped, chart: what.value });
    if (grouped === "tag:") return show(place, empty("By which tag?", "Enter its name. Clients name tags in a header: x-dragoman-tags: job=7,branch=main"));
    const [, passed, , step] = SPANS[span.value];
    const now = Date.now();
    const since_ms = now - passed;
    const load = async () => {
      const [sums, speed] = await Promise.all([get("/api/v1/usage", { by: grouped, since_ms, step, time_zone: ZONE }), get("/api/v1/usage/speed", { since_ms })]);
      const accounts = session.may("accounts:read") ? (await get("/api/v1/accounts")).accounts : [];
      return { ...sums, speed: speed.routes, accounts };
    };
    void fill(place, load, (data) => report(data, { span: span.value, now }, grouped, what.value));
  };
  for (const one of [span.node, by.node, tag, what.node]) one.addEventListener("change", draw);
  draw();
  return { node: h("div", null, h("div.bar", null, span.node, by.node, tag, what.node), place) };
}

/** @param {string} label @param {Record<string, string>} options @param {string} chosen */
function choice(label, options, chosen) {
  const select = h("select", null, Object.entries(options).map(([value, text]) => h("option", { value, selected: value === chosen }, text)));
  return { node: h("label.check", null, label, select), get value() { return /** @type {string} */ (select.value); } };
}

/** @param {any} data @param {{span: string, now: number}} time @param {string} by @param {string} what */
function report(data, time, by, what) {
  if (!data.sums.length) return empty("Nothing was used in this time", "Choose a longer time, or ", h("a", { href: "/console/connect" }, "point a client at this gateway"), ".");
  const groups = group(data.sums);
  const all = sum(data.sums);
  return h("div", null, data.whole ? null : h("p.notice", null, "This key sees its own usage only."), figures(all),
    chart(data.sums, time, what), h("h2", null, `By ${plain(by.replace(":", " "))}`), table(groups, all, by, data.names), speedTable(data.speed), plans(data.accounts));
}

/** @param {any[]} sums @returns {any} */
function sum(sums) {
  /** @type {any} */
  const total = {};
  for (const one of sums) {
    for (const [name, value] of Object.entries(one)) if (typeof value === "number") total[name] = (total[name] || 0) + value;
  }
  return total;
}

/** @param {any[]} sums @returns {[string, any][]} */
function group(sums) {
  /** @type {Map<string, any[]>} */
  const found = new Map();
  for (const one of sums) found.set(one.group, [...(found.get(one.group) || []), one]);
  const summed = [...found].map(([name, rows]) => /** @type {[string, any]} */ ([name, sum(rows)]));
  return summed.sort((a, b) => b[1].cost_nano_usd - a[1].cost_nano_usd || b[1].requests - a[1].requests);
}

/** @param {any} one */
function cost(one) {
  const unpriced = one.counted - one.priced;
  return sign(one) + money(one.cost_nano_usd / 1e9) + (unpriced ? ` + ${number(unpriced)} unpriced` : "");
}

/** How a sum is known, as on every page: estimated or derived in part. @param {any} one */
function sign(one) {
  return one.estimated ? "≈ " : one.derived ? "~ " : "";
}

/** @param {any} one */
function estimated(one) {
  return one.estimated ? `${percent(one.estimated, one.requests)} of the requests are estimated` : "reported by the upstreams";
}

/** @param {any} all */
function figures(all) {
  const shown = [
    ["Requests", number(all.requests), all.failed ? `${number(all.failed)} failed` : "none failed"],
    ["Cost", cost(all), estimated(all)],
    ["Input tokens", sign(all) + tokens(all.input_tokens), `${percent(all.cache_read_tokens, all.input_tokens)} from cache`],
    ["Output tokens", sign(all) + tokens(all.output_tokens), all.reasoning_tokens ? `${tokens(all.reasoning_tokens)} reasoning` : ""],
    ["Saved by caches", money(all.cache_saved_nano_usd / 1e9), all.cache_possible_tokens ? `${cacheShare(all)} of what they could have had` : ""],
    ["Mean duration", duration(all.duration_ms / all.requests), ""],
  ];
  return h("dl.figures", null, shown.map(([name, value, note]) => h("div", null, h("dt", null, name), h("dd", null, value, " ", h("small", null, note)))));
}

/**
 * Where the bars begin: at hours and days of the viewer's clock, of which a day may have 23 or 25.
 * @param {string} span @param {number} now
 */
function barStarts(span, now) {
  const [, passed, hours] = SPANS[span];
  const since = new Date(now - passed);
  const hour = since.getTime() - (since.getMinutes() * 60 + since.getSeconds()) * 1000 - since.getMilliseconds();
  const first = since.getHours() - (since.getHours() % hours);
  /** @param {number} index */
  const start = (index) => (hours === 1 ? hour + index * HOUR_MS : new Date(since.getFullYear(), since.getMonth(), since.getDate(), first + index * hours).getTime());
  const starts = [];
  for (let index = 0; start(index) <= now; index++) starts.push(start(index));
  return starts;
}

/** @param {any[]} sums @param {{span: string, now: number}} time @param {string} what */
function chart(sums, time, what) {
  const bars = barStarts(time.span, time.now).map((at) => ({ at, rows: /** @type {any[]} */ ([]) }));
  for (const one of sums) (bars.findLast((bar) => bar.at <= one.slot * SLOT_MS) || bars[0]).rows.push(one);
  const label = new Intl.DateTimeFormat("en-GB", SPANS[time.span][4]);
  /** @type {Record<string, [string[], (one: any) => number[], (value: number) => string]>} */
  const kinds = {
    cost: [["US dollars"], (one) => [(one.cost_nano_usd || 0) / 1e9], money],
    tokens: [["input", "output"], (one) => [one.input_tokens || 0, one.output_tokens || 0], tokens],
    requests: [["ok", "failed"], (one) => [(one.requests || 0) - (one.failed || 0), one.failed || 0], number],
  };
  const [parts, values, format] = kinds[what] || kinds.cost;
  return barChart(`${what[0].toUpperCase()}${what.slice(1)} over time`, bars.map((bar) => ({ label: label.format(bar.at), values: values(sum(bar.rows)) })), parts, format);
}

/** @param {[string, any][]} groups @param {any} all @param {string} by @param {Record<string, string>} names */
function table(groups, all, by, names) {
  const heads = [GROUPS[by] || plain(by.slice("tag:".length)), "Requests", "Failed", "Input", "From cache", "Of possible", "Cache written", "Saved", "Output", "Reasoning", "Cost", "Mean duration"];
  /** @param {any} one */
  const cells = (one) => [number(one.requests), number(one.failed), sign(one) + tokens(one.input_tokens), percent(one.cache_read_tokens, one.input_tokens), cacheShare(one), tokens(one.cache_write_tokens), money(one.cache_saved_nano_usd / 1e9), sign(one) + tokens(one.output_tokens),
    tokens(one.reasoning_tokens), cost(one), duration(one.duration_ms / one.requests)].map((text) => h("td.number", null, text));
  const none = OF_UPSTREAMS.includes(by) ? "no upstream reached" : "none";
  const rest = groups.length > MOST ? h("p.soft", null, `The ${MOST} most expensive of ${number(groups.length)}.`) : null;
  return h("div", null, h("div.scroll", { tabindex: "0", role: "region", "aria-label": "Usage" }, h("table", null, h("caption.unseen", null, `Usage by ${plain(by.replace(":", " "))}`),
    h("thead", null, h("tr", null, heads.map((name, index) => h(index ? "th.number" : "th", { scope: "col" }, name)))),
    h("tbody", null, groups.slice(0, MOST).map(([name, one]) => h("tr", null, h("th.text", { scope: "row" }, plain(names[name] || (name === "/" || !name ? none : name))), cells(one)))),
    h("tfoot", null, h("tr", null, h("th", { scope: "row" }, "All"), cells(all))))), rest);
}

/** What the upstreams said of their plans with the last response. @param {any[]} accounts */
function plans(accounts) {
  const known = accounts.flatMap((one) => one.credentials.filter((/** @type {any} */ credential) => credential.limits).map((/** @type {any} */ credential) =>
    h("article.card", null, h("h3", null, plain(one.provider), credential.label === "1 of 1" ? null : h("span.soft", null, ` ${plain(credential.label)}`)), planWindows(credential.limits))));
  if (!known.length) return null;
  return h("section", null, h("h2", null, "Plans, as of the last response"), h("div.cards", null, known), h("p", null, h("a", { href: "/console/accounts" }, "Accounts"), " reads them again."));
}

/** @param {any[]} routes */
function speedTable(routes) {
  if (!routes.length) return null;
  return h("section", null, h("h2", null, "Speed by route"), h("div.scroll", { tabindex: "0", role: "region", "aria-label": "Speed" }, h("table", null, h("caption.unseen", null, "Speed by route"),
    h("thead", null, h("tr", null, h("th", { scope: "col" }, "Route"), ["Requests", "First token, half within", "First token, 95 % within", "Tokens per second"].map((name) => h("th.number", { scope: "col" }, name)))),
    h("tbody", null, routes.map((one) => h("tr", null, h("th.text", { scope: "row" }, plain(one.route || "no upstream reached")), h("td.number", null, number(one.requests)), h("td.number", null, duration(one.ttft_p50_ms)),
      h("td.number", null, duration(one.ttft_p95_ms)), h("td.number", null, one.tokens_per_s === null ? "–" : one.tokens_per_s.toFixed(1))))))));
}

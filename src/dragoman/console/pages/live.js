// Live: what is happening now?

import { go, inspectAddress, mayOpen } from "../address.js";
import { send, session } from "../api.js";
import { ask } from "../dialog.js";
import { announce, h, setText, show } from "../dom.js";
import { feed } from "../feed.js";
import { ago, duration, exactTime, money, number } from "../format.js";
import { empty, failed, loading } from "../states.js";
import { Table } from "../table.js";
import { plain, quote } from "../text.js";
import { costText, modelCell, outcomeMark, protocols, sourceHint, speed, stateMark, tokenText } from "../words.js";

export const title = "Live";
const ENDED_ROWS = 50;

/** @returns {import("../main.js").Page} */
export function open() {
  /** @type {Map<number, any>} */
  const rows = new Map();
  /** @type {Record<string, string>} names of keys by their ids */
  const names = {};
  let totals = /** @type {any} */ ({});
  let frozen = false;
  let waits = true;
  let rate = 0;
  let measured = { at: performance.now(), tokens: 0 };

  const figures = makeFigures();
  const notice = h("p.notice", { hidden: true });
  const freeze = h("button", { type: "button", "aria-pressed": "false", onclick: () => toggle() }, "Freeze");
  const place = h("div", null, loading("Connecting to the gateway…"));
  const table = new Table("Requests under way, and the last 50 that ended", columns(endStream, names), {
    key: (row) => String(row.number), open: (row) => go(inspectAddress(row.request_id)),
  });
  const nothing = makeNothing();
  const earlier = empty("No requests since the start of the gateway", "Earlier ones are on ", h("a", { href: "/console/requests" }, "Requests"), ".");
  const node = h("div", null, figures.node, h("div.bar", null, freeze, h("span.soft", null, "Newest first. Open a row to see its stream.")), notice, place);

  function toggle() {
    frozen = !frozen;
    freeze.setAttribute("aria-pressed", String(frozen));
    setText(freeze, frozen ? "Frozen: continue" : "Freeze");
    announce(frozen ? "The list is frozen." : "The list is live again.");
    if (!frozen) draw();
  }

  function draw() {
    figures.set(totals, rate);
    if (frozen || waits) return;
    const newest = [...rows.values()].sort((a, b) => b.time - a.time || b.number - a.number);
    const ended = newest.filter((row) => row.state === "ended").slice(0, ENDED_ROWS); // each process sends as many
    const shown = [...newest.filter((row) => row.state !== "ended"), ...ended];
    table.node.classList.toggle("one-replica", !shown.some((row) => row.replica));
    table.set(shown);
    const content = shown.length ? table.node : totals.requests_last_hour ? earlier : nothing;
    if (place.firstChild !== content) show(place, content);
  }

  /** @param {CustomEvent} event */
  function onRows(event) {
    waits = false;
    let added = 0;
    for (const { number: id, ...fields } of event.detail.rows) {
      const before = rows.get(id);
      if (before) added += Math.max(0, (fields.output_tokens ?? before.output_tokens ?? 0) - (before.output_tokens ?? 0));
      if (fields.outcome && !["ok", "client_gone"].includes(fields.outcome) && before) announce(`A request failed: ${plain(fields.error_code || fields.outcome)}`);
      rows.set(id, { ...(before || { number: id }), ...fields });
    }
    for (const id of event.detail.gone) rows.delete(id);
    measured.tokens += added;
    totals = event.detail.totals;
    notice.hidden = !event.detail.behind;
    if (event.detail.behind) setText(notice, "More changes than this connection carries: rows follow later, the figures on top are right.");
    draw();
  }

  function onState() {
    const stale = feed.state === "stale" || feed.state === "paused" || feed.state === "refused";
    notice.hidden = !stale;
    if (feed.state === "paused") setText(notice, "Paused while this tab was hidden.");
    else if (stale) setText(notice, `Not live: this is what was known before the connection broke. ${plain(feed.problem)}`);
    if (stale && waits) show(place, failed(new Error(feed.problem)));
  }

  const timer = setInterval(() => {
    const passed = (performance.now() - measured.at) / 1000;
    rate = measured.tokens / passed;
    measured = { at: performance.now(), tokens: 0 };
    draw();
  }, 1000);
  const partial = h("p.notice", { hidden: true }, "Another process of this gateway, or the server that its replicas share, does not answer: requests are missing here. Requests has them once they have ended.");
  const alone = h("p.soft", { hidden: true }, "This is what one replica does. Others with the same database are not shown here: that takes store.shared.");
  node.insertBefore(partial, notice);
  node.append(alone);
  /** @param {Event} event */
  const hello = (event) => {
    rows.clear();
    Object.assign(names, /** @type {CustomEvent} */ (event).detail.names);
    partial.hidden = !(/** @type {CustomEvent} */ (event).detail.is_partial);
    alone.hidden = !(/** @type {CustomEvent} */ (event).detail.one_replica);
  };
  const hear = /** @type {EventListener} */ (onRows);
  feed.addEventListener("hello", hello);
  feed.addEventListener("rows", hear);
  feed.addEventListener("state", onState);
  feed.watch({ watch: "live" });
  return {
    node,
    keys: { ...table.keys, f: toggle },
    close() {
      clearInterval(timer);
      feed.removeEventListener("hello", hello);
      feed.removeEventListener("rows", hear);
      feed.removeEventListener("state", onState);
      feed.stop();
    },
  };
}

function makeNothing() {
  return empty("No requests yet", "Requests appear here while they are answered. ",
    h("a", { href: "/console/connect" }, "Point a client at this gateway"), mayOpen("models") ? [" or ", h("a", { href: "/console/models" }, "try a model")] : null, ".");
}

function makeFigures() {
  const names = ["Under way", "Tokens per second", "Cost in the last hour", "Errors in 5 min", "Requests in the last hour"];
  const values = names.map(() => h("dd", null, "–"));
  return {
    node: h("dl.figures", null, names.map((name, index) => h("div", null, h("dt", null, name), values[index]))),
    /** @param {any} totals @param {number} rate */
    set(totals, rate) {
      if (totals.under_way === undefined) return;
      const least = totals.is_partial ? "≥ " : "";
      setText(values[0], number(totals.under_way));
      setText(values[1], number(rate));
      show(values[2], least + money(totals.cost_last_hour_usd), totals.unpriced_last_hour ? h("small", null, `and ${number(totals.unpriced_last_hour)} request${totals.unpriced_last_hour === 1 ? "" : "s"} without a price`) : null);
      setText(values[3], (totals.errors ? "✕ " : "") + number(totals.errors));
      values[3].className = totals.errors ? "bad" : "";
      setText(values[4], least + number(totals.requests_last_hour));
    },
  };
}

/** @param {(row: any) => void} end @param {Record<string, string>} names @returns {import("../table.js").Column[]} */
function columns(end, names) {
  return [
    { title: "State", cell: (row) => (row.state === "ended" ? outcomeMark(row) : stateMark(row.state)) },
    { title: "Age", kind: "number", cell: (row) => (row.state === "ended" ? ago(row.time) : duration(Date.now() - row.time)), hint: (row) => exactTime(row.time) },
    { title: "Model, route", kind: "wide", cell: modelCell, hint: (row) => row.failed_attempts.map(plain).join("\n") },
    { title: "Client, key", cell: (row) => h("span", null, quote(row.client || "unknown"), h("br"), h("span.soft", null, quote(names[row.key] || row.key))) },
    { title: "Replica", kind: "replica", cell: (row) => quote(row.replica || "") },
    { title: "Protocols", kind: "nowrap", cell: protocols },
    { title: "First token", kind: "number", cell: (row) => duration(row.ttft_ms) },
    { title: "Output", kind: "number", cell: (row) => tokenText(row.output_tokens, row.usage_source), hint: (row) => sourceHint(row.usage_source) },
    { title: "Tokens/s", kind: "number", cell: (row) => { const per = speed(row); return per === null ? "–" : per.toFixed(per < 10 ? 1 : 0); } },
    { title: "Cost", kind: "number", cell: (row) => costText(row.cost_usd, row.state === "ended" ? row.usage_source : row.usage_source && "estimated") },
    { title: "Losses", kind: "number", cell: (row) => (row.passthrough ? "0" : number(row.losses)) },
    { title: "Retries", kind: "number", cell: (row) => number(row.failed_attempts.length), hint: (row) => row.failed_attempts.map(plain).join("\n") },
    { title: "Action", cell: (row) => (row.state === "ended" || !session.may("requests:end") ? "" : h("button.quiet", { type: "button", onclick: () => end(row) }, "End")) },
  ];
}

/** @param {any} row */
async function endStream(row) {
  const answer = await ask(`End the request ${plain(row.request_id)}?`, "Its client gets an error in its own protocol.", "End it");
  if (!answer) return;
  try {
    await send("DELETE", `/api/v1/live/${encodeURIComponent(row.request_id)}`);
  } catch (error) {
    announce(/** @type {Error} */ (error).message);
  }
}

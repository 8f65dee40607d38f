// Three columns on one time axis: what the upstream sent, what it meant, what the client got.

import { h, s } from "./dom.js";
import { duration } from "./format.js";
import { lines, plain } from "./text.js";

const SIDES = ["upstream", "hub", "client"];
const TITLES = { upstream: "Upstream frame", hub: "Hub event", client: "Client event" };
const SAME_TIME_S = 0.0005;
const SHOWN_GAP_S = 0.05;
const GAP_PX = 120; // of the longest gap
const SHORT = 300;
const NOISE = new Set(["type", "object", "index", "created", "created_at", "logprobs", "role", "sequence_number", "obfuscation",
  "id", "item_id", "model", "output_index", "content_index", "service_tier", "system_fingerprint"]);

export class Timeline {
  constructor() {
    /** @type {any[]} */
    this.entries = [];
    this.longest = 1;
    this.last = -1;
    this.note = h("p.notice", { hidden: true });
    this.list = h("div", { role: "rowgroup" });
    this.node = h("div", null, this.note,
      h("div.timeline", { role: "table", "aria-label": "Timeline of the request" },
        h("div", { role: "rowgroup" }, h("div.heads", { role: "row" }, h("span", { role: "columnheader" }, "Time"),
          SIDES.map((side) => h(`span.side-${side}`, { role: "columnheader" }, TITLES[/** @type {keyof typeof TITLES} */ (side)])))),
        this.list));
  }

  clear() {
    this.entries = [];
    this.last = -1;
    this.list.replaceChildren();
  }

  /** @param {{at: number, side: string, text: string}[]} entries in the order of time @param {number} [dropped] */
  add(entries, dropped = 0) {
    this.note.hidden = !dropped;
    if (dropped) this.note.textContent = `${dropped.toLocaleString("en")} earlier frames are gone: only the last 2,000 are kept for a live view.`;
    this.entries.push(...entries);
    const drawn = document.createDocumentFragment();
    for (const group of groups(entries)) {
      const passed = this.last < 0 ? 0 : group[0].at - this.last;
      if (passed > this.longest) this.#rescale(passed, [this.list, drawn]);
      if (passed >= SHOWN_GAP_S) drawn.append(this.#gap(passed));
      drawn.append(moment(group));
      this.last = group[group.length - 1].at;
    }
    this.list.append(drawn);
  }

  /** Gaps are drawn to one scale, which is that of the longest. @param {number} longest @param {ParentNode[]} places */
  #rescale(longest, places) {
    for (const bar of places.flatMap((place) => [...place.querySelectorAll("svg.pause")])) resize(bar, this.longest / longest);
    this.longest = longest;
  }

  /** @param {number} seconds */
  #gap(seconds) {
    const height = Math.max(2, (GAP_PX * seconds) / this.longest);
    return h("div.gap", { role: "row" },
      s("svg.pause", { height, "data-height": height, viewBox: "0 0 83 10", preserveAspectRatio: "none", "aria-hidden": "true" },
        s("rect.gap-bar", { x: 70, y: 0, width: 6, height: 10 })),
      h("span", { role: "cell" }, `${duration(seconds * 1000)} without anything`));
  }
}

/** @param {Element} bar @param {number} factor */
function resize(bar, factor) {
  const height = Math.max(2, Number(bar.getAttribute("data-height")) * factor);
  bar.setAttribute("data-height", String(height));
  bar.setAttribute("height", String(height));
}

/** @param {any[]} entries */
function* groups(entries) {
  /** @type {any[]} */
  let group = [];
  for (const entry of entries) {
    if (group.length && entry.at - group[0].at > SAME_TIME_S) {
      yield group;
      group = [];
    }
    group.push(entry);
  }
  if (group.length) yield group;
}

/** @param {any[]} group */
function moment(group) {
  return h("div.moment", { role: "row" },
    h("time", { role: "rowheader", title: `${(group[0].at * 1000).toFixed(3)} ms after the request arrived` }, `${(group[0].at * 1000).toFixed(1)} ms`),
    SIDES.map((side) => h(`div.side-${side}`, { role: "cell", "data-side": side },
      group.filter((entry) => entry.side === side).map(entryNode))));
}

/** @param {{text: string}} entry */
function entryNode(entry) {
  const brief = plain(shorten(entry.text)).slice(0, SHORT);
  if (brief === entry.text && brief.length < 40) return h("span.entry", null, brief);
  const button = h("button.entry", {
    type: "button", "aria-expanded": "false",
    onclick: () => {
      const open = button.classList.toggle("open");
      button.setAttribute("aria-expanded", String(open));
      button.textContent = open ? lines(pretty(entry.text)) : brief;
    },
  }, brief);
  return button;
}

/** A frame's name and JSON without the fields that are the same in every frame. @param {string} text */
export function shorten(text) {
  const [name, data] = split(text);
  const value = parse(data);
  if (value === undefined || typeof value !== "object" || value === null || Array.isArray(value)) return text;
  const choice = Array.isArray(value.choices) && value.choices.length === 1 ? value.choices[0] : {};
  const { choices, ...others } = value;
  const shown = JSON.stringify(prune(Object.keys(choice).length ? { ...choice, ...others } : value))
    .replace(/"([A-Za-z_]\w*)":/g, "$1:").slice(1, -1);
  return `${name.replace(/Event$/, "").replace(/^response\./, "")} ${shown}`.trim();
}

/** @param {string} text */
function pretty(text) {
  const [name, data] = split(text);
  const value = parse(data);
  return value === undefined ? text : `${name}\n${JSON.stringify(value, null, 2)}`.trim();
}

/** @param {string} text @returns {[string, string]} */
function split(text) {
  if (text.startsWith("{")) return ["", text];
  const space = text.indexOf(" ");
  return space < 0 ? [text, ""] : [text.slice(0, space), text.slice(space + 1)];
}

/** @param {string} text @returns {any} */
function parse(text) {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}

/** @param {any} value @returns {any} */
function prune(value) {
  if (Array.isArray(value)) return value.map(prune);
  if (typeof value !== "object" || value === null) return value;
  const kept = Object.entries(value).filter(([name]) => !NOISE.has(name)).map(([name, inner]) => [name, prune(inner)]);
  return Object.fromEntries(kept.filter(([, inner]) => inner !== null && !(typeof inner === "object" && !Object.keys(inner).length)));
}

// JSON as lines that know their pointer, and the difference of two such texts.

import { h } from "./dom.js";
import { findMedia, thumbnail } from "./media.js";
import { lines as visible } from "./text.js";

const MAX_LINES = 3000;
const MAX_STRING = 4000;

/** @typedef {{text: string, at: string, media?: import("./media.js").Media | null}} Line */

/** @param {string} text @returns {Line[]} */
export function toLines(text) {
  let value;
  try {
    value = JSON.parse(text);
  } catch {
    return text.split("\n").slice(0, MAX_LINES).map((line) => ({ text: line.slice(0, MAX_STRING), at: "" }));
  }
  /** @type {Line[]} */
  const found = [];
  walk(value, null, "", "", "", "", found);
  return found;
}

/**
 * @param {any} value @param {any} parent @param {string} at @param {string} indent @param {string} before @param {string} after @param {Line[]} found
 */
function walk(value, parent, at, indent, before, after, found) {
  if (found.length >= MAX_LINES) return;
  const isList = Array.isArray(value);
  const inner = typeof value === "object" && value !== null ? Object.entries(value) : [];
  if (!inner.length) {
    const media = findMedia(value, parent);
    const text = media ? `"${media.label}"` : JSON.stringify(value) ?? "null";
    found.push({ media, text: indent + before + (text.length > MAX_STRING ? `${text.slice(0, MAX_STRING)}… (${text.length} characters)` : text) + after, at });
    return;
  }
  found.push({ text: `${indent}${before}${isList ? "[" : "{"}`, at });
  for (const [index, [name, item]] of inner.entries()) {
    const step = name.replaceAll("~", "~0").replaceAll("/", "~1");
    walk(item, value, `${at}/${step}`, `${indent}  `, isList ? "" : `${JSON.stringify(name)}: `, index + 1 < inner.length ? "," : "", found);
  }
  found.push({ text: `${indent}${isList ? "]" : "}"}${after}`, at: "" });
}

/** A block of JSON; `find` shows the line of a pointer. @param {string} text @param {string} label */
export function jsonView(text, label) {
  const made = toLines(text).map((line) => ({ at: line.at, node: h("div", null, visible(line.text), line.media ? thumbnail(line.media) : null) }));
  const node = h("div.diff", { tabindex: "0", role: "region", "aria-label": label }, made.map((line) => line.node));
  if (made.length >= MAX_LINES) node.append(h("p", null, `Only the first ${MAX_LINES} lines are shown.`));
  return {
    node,
    /** @param {string} pointer @returns {boolean} */
    find(pointer) {
      for (let at = pointer; ; at = at.slice(0, at.lastIndexOf("/"))) {
        const line = made.find((one) => one.at === at && (at !== "" || pointer === ""));
        if (line) {
          node.querySelector("mark")?.replaceWith(node.querySelector("mark")?.textContent || "");
          line.node.replaceChildren(h("mark", null, line.node.textContent));
          line.node.scrollIntoView({ block: "center" });
          node.focus({ preventScroll: true });
          return at === pointer;
        }
        if (!at) return false;
      }
    },
  };
}

/**
 * The lines of two texts, those in one only marked by + and -.
 * @param {string} first @param {string} second @param {string} label
 */
export function diffView(first, second, label) {
  const rows = diff(toLines(first).map((line) => line.text.replace(/,$/, "")), toLines(second).map((line) => line.text.replace(/,$/, "")));
  return h("div.diff", { tabindex: "0", role: "region", "aria-label": label }, rows.map(([sign, text]) =>
    h(sign === "+" ? "div.add" : sign === "-" ? "div.del" : "div", null, `${sign} ${visible(text)}`)));
}

/**
 * @param {string[]} a @param {string[]} b
 * @returns {[string, string][]}
 */
export function diff(a, b) {
  let start = 0;
  while (start < a.length && start < b.length && a[start] === b[start]) start++;
  let end = 0;
  while (end < a.length - start && end < b.length - start && a[a.length - 1 - end] === b[b.length - 1 - end]) end++;
  /** @type {[string, string][]} */
  const rows = a.slice(0, start).map((line) => [" ", line]);
  rows.push(...middle(a.slice(start, a.length - end), b.slice(start, b.length - end)));
  rows.push(...a.slice(a.length - end).map((line) => /** @type {[string, string]} */ ([" ", line])));
  return rows;
}

/** @param {string[]} a @param {string[]} b @returns {[string, string][]} */
function middle(a, b) {
  if (a.length * b.length > 1_000_000) return [...a.map((line) => mark("-", line)), ...b.map((line) => mark("+", line))];
  const width = b.length + 1;
  const same = new Uint16Array((a.length + 1) * width);
  for (let i = a.length - 1; i >= 0; i--) {
    for (let j = b.length - 1; j >= 0; j--) {
      same[i * width + j] = a[i] === b[j] ? same[(i + 1) * width + j + 1] + 1 : Math.max(same[(i + 1) * width + j], same[i * width + j + 1]);
    }
  }
  /** @type {[string, string][]} */
  const rows = [];
  let [i, j] = [0, 0];
  while (i < a.length || j < b.length) {
    if (i < a.length && j < b.length && a[i] === b[j]) { rows.push(mark(" ", a[i])); i++; j++; }
    else if (j >= b.length || (i < a.length && same[(i + 1) * width + j] >= same[i * width + j + 1])) rows.push(mark("-", a[i++]));
    else rows.push(mark("+", b[j++]));
  }
  return rows;
}

/** @param {string} sign @param {string} text @returns {[string, string]} */
function mark(sign, text) {
  return [sign, text];
}

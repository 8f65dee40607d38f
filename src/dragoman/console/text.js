// Text of models, clients, upstreams and files: shown so that nothing in it acts, hides or turns round.

import { h } from "./dom.js";

const UNSEEN = /[\u0000-\u0009\u000b-\u001f\u007f-\u009f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufe00-\ufe0f\ufeff\ufff9-\ufffb]|\p{Cs}|[\u{e0000}-\u{e007f}]/gu;
const FOLD = 4000;

/** @param {string} sign */
function symbol(sign) {
  const code = sign.codePointAt(0) ?? 0;
  if (code >= 0xd800 && code <= 0xdfff) return "\ufffd";
  return `⟨U+${code.toString(16).toUpperCase().padStart(4, "0")}⟩`;
}

/**
 * One line: control and bidirectional characters become symbols.
 * @param {unknown} text
 */
export function plain(text) {
  return String(text ?? "").replace(UNSEEN, symbol).replaceAll("\n", "↵");
}

/**
 * Several lines: line breaks and tabs stay.
 * @param {unknown} text
 */
export function lines(text) {
  return String(text ?? "").replaceAll("\r\n", "\n").replace(UNSEEN, (sign) => (sign === "\t" ? sign : symbol(sign)));
}

/**
 * A foreign word in a line of ours; its writing direction stays inside.
 * @param {unknown} text
 * @param {number} [longest] characters
 */
export function quote(text, longest = 200) {
  const whole = plain(text);
  if (whole.length <= longest) return h("bdi", null, whole);
  return h("bdi", { title: whole.slice(0, FOLD) }, `${whole.slice(0, longest)}…`);
}

/**
 * A block of foreign text; what is longer than 4 kB is folded.
 * @param {string} text
 * @param {string} [label]
 */
export function block(text, label) {
  const whole = lines(text);
  const area = h("pre.text", { tabindex: "0", role: "region", "aria-label": label || "Text" }, whole.slice(0, FOLD));
  if (whole.length <= FOLD) return area;
  const more = h("button.quiet", { onclick: () => { area.textContent = whole; more.remove(); } },
    `Show all ${whole.length.toLocaleString("en")} characters`);
  return h("div", null, area, more);
}

/**
 * Copy text without terminal escapes.
 * @param {string} text
 */
export async function copy(text) {
  await navigator.clipboard.writeText(text.replace(/[\u0000-\u0008\u000b-\u001f\u007f-\u009f]/g, ""));
}

/**
 * @param {() => string} make
 * @param {string} [label]
 */
export function copyButton(make, label = "Copy") {
  const button = h("button", {
    type: "button",
    onclick: async () => {
      try {
        await copy(make());
        button.textContent = "Copied";
      } catch {
        button.textContent = "Copying is not allowed here";
      }
      setTimeout(() => { button.textContent = label; }, 2000);
    },
  }, label);
  return button;
}

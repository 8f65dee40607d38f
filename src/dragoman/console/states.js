// What a page shows when it has nothing to show yet, or nothing at all: each state says the next step.

import { ApiError, Unreachable } from "./api.js";
import { announce, h } from "./dom.js";
import { plain } from "./text.js";

/** @param {string} [what] */
export function loading(what = "Loading…") {
  return h("p.state.loading", { "aria-busy": "true" }, what);
}

/**
 * @param {string} title
 * @param {...any} next
 */
export function empty(title, ...next) {
  return h("section.state.empty", null, h("h2", null, title), h("p", null, next.flat()));
}

/**
 * @param {unknown} error
 * @param {() => void} [retry]
 */
export function failed(error, retry) {
  if (error instanceof ApiError && error.status === 403) return forbidden(error);
  const title = error instanceof Unreachable ? "The gateway cannot be reached" : "This did not work";
  const message = error instanceof ApiError && error.status === 412 ? "It was changed meanwhile, so nothing was written. Load it again." : error instanceof Error ? error.message : String(error);
  announce(`${title}. ${message}`);
  return h("section.state.failed", { role: "alert" },
    h("h2", null, h("span.mark.bad", { "aria-hidden": "true" }, "✕"), ` ${title}`),
    h("p", null, plain(message)),
    retry && h("button", { onclick: retry, type: "button" }, "Try again"));
}

/** @param {Error} error */
export function forbidden(error) {
  return h("section.state.forbidden", null,
    h("h2", null, h("span.mark", { "aria-hidden": "true" }, "⊘"), " Not for this key"),
    h("p", null, plain(error.message)),
    h("p", null, "Sign out and sign in with the owner's key, or run: ", h("code", null, "dragoman console")));
}

/**
 * Above what was loaded before, if it could not be loaded again.
 * @param {unknown} error
 * @param {Date} since
 * @param {() => void} retry
 */
export function stale(error, since, retry) {
  const message = `Not up to date: this is what was known at ${since.toLocaleTimeString("en-GB")}. ${plain(error instanceof Error ? error.message : error)}`;
  announce(message);
  return h("p.notice.stale", { role: "alert" }, h("span.mark.warn", { "aria-hidden": "true" }, "▲ "), message, " ", h("button.quiet", { type: "button", onclick: retry }, "Try again"));
}

/** @type {WeakMap<Element, Date>} when the content of a place was loaded */
const loaded = new WeakMap();
/** @type {WeakMap<Element, () => Promise<any>>} what is loaded into a place: an earlier request may be answered later */
const newest = new WeakMap();

/**
 * Show something while it is loaded, then the result or what went wrong. What was loaded before stays, and is called stale.
 * @param {Element} place
 * @param {() => Promise<any>} load
 * @param {(data: any) => any} draw
 */
export async function fill(place, load, draw) {
  if (!place.firstChild) place.replaceChildren(loading());
  place.setAttribute("aria-busy", "true");
  newest.set(place, load);
  const retry = () => void fill(place, load, draw);
  try {
    const data = await load();
    if (newest.get(place) !== load) return;
    const drawn = draw(data);
    place.replaceChildren(...[drawn].flat());
    loaded.set(place, new Date());
  } catch (error) {
    if (newest.get(place) !== load || (error instanceof DOMException && error.name === "AbortError")) return;
    const since = loaded.get(place);
    place.querySelector(":scope > .stale")?.remove();
    if (since && !(error instanceof ApiError && [400, 403].includes(error.status))) place.prepend(stale(error, since, retry));
    else place.replaceChildren(failed(error, retry));
  } finally {
    if (newest.get(place) === load) place.removeAttribute("aria-busy");
  }
}

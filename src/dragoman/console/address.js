// Every state of the console has an address.

/** Name, title, and the key after `g`. */
export const PAGES = [
  { name: "live", title: "Live", key: "l" },
  { name: "requests", title: "Requests", key: "r" },
  { name: "usage", title: "Usage", key: "u" },
  { name: "models", title: "Models", key: "m" },
  { name: "accounts", title: "Accounts", key: "a" },
  { name: "keys", title: "Keys", key: "k" },
  { name: "settings", title: "Settings", key: "s" },
  { name: "doctor", title: "Doctor", key: "d" },
  { name: "connect", title: "Connect", key: "c" },
];

/** Go to another state. @param {string} address @param {boolean} [replace] */
export function go(address, replace = false) {
  history[replace ? "replaceState" : "pushState"](null, "", address);
  dispatchEvent(new CustomEvent("moved", { detail: { replace } }));
}

/**
 * Change the address without drawing the page anew.
 * @param {Record<string, string | string[]>} query
 * @param {Record<string, string>} [fragment] content, which no server or log sees
 */
export function keepInAddress(query, fragment = {}) {
  history.replaceState(null, "", location.pathname + encode("?", query) + encode("#", fragment));
}

/** @param {string} sign @param {Record<string, string | string[]>} values */
function encode(sign, values) {
  const given = Object.entries(values).flatMap(([name, value]) => [value].flat().filter(Boolean).map((one) => [name, one]));
  return given.length ? sign + new URLSearchParams(given) : "";
}

/** @param {string} id */
export function inspectAddress(id) {
  return `/console/inspect/${encodeURIComponent(id)}`;
}

const SINGLE_KEYS = "dragoman-single-keys";

/** Whether single letters are commands; people who dictate text switch them off. */
export const singleKeys = {
  get on() { return localStorage.getItem(SINGLE_KEYS) !== "off"; },
  /** @param {boolean} on */
  set(on) { localStorage.setItem(SINGLE_KEYS, on ? "on" : "off"); },
};

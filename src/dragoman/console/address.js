// Every state of the console has an address.

import { session } from "./api.js";

/** Name, title, the key after `g`, and the scope that it needs; `own`: a client key may open it for what is its own. */
const ALL = [
  { name: "live", title: "Live", key: "l", scope: "requests:read", own: true },
  { name: "requests", title: "Requests", key: "r", scope: "requests:read", own: true },
  { name: "usage", title: "Usage", key: "u", scope: "usage:read", own: true },
  { name: "models", title: "Models", key: "m", scope: "models:read" },
  { name: "accounts", title: "Accounts", key: "a", scope: "accounts:read" },
  { name: "keys", title: "Keys", key: "k", scope: "keys:read" },
  { name: "budgets", title: "Budgets", key: "b", scope: "limits:read" },
  { name: "settings", title: "Settings", key: "s", scope: "config:read" },
  { name: "doctor", title: "Doctor", key: "d", scope: "doctor:run" },
  { name: "connect", title: "Connect", key: "c", scope: "models:read", own: true },
];

/** The names of all pages, whether this session may open them or not. */
export const NAMES = [...ALL.map((page) => page.name), "inspect", "help"];

/** The pages that this session may open. */
export function offeredPages() {
  return ALL.filter((page) => session.may(page.scope) || (page.own && session.about.role === "client"));
}

/** Whether this session may open a page. @param {string} name */
export function mayOpen(name) {
  return offeredPages().some((page) => page.name === name);
}

/** Go to another state; main.js does it, unless something would be lost. @param {string} address @param {boolean} [replace] */
export function go(address, replace = false) {
  dispatchEvent(new CustomEvent("go", { detail: { address, replace } }));
}

/** The address of the page that is shown: the browser's own changes before that page knows. */
export const here = {
  address: "",
  note() { here.address = location.pathname + location.search + location.hash; },
};

/**
 * Change the address without drawing the page again.
 * @param {Record<string, string | string[]>} query
 * @param {Record<string, string>} [fragment] content, which no server or log sees
 */
export function keepInAddress(query, fragment = {}) {
  history.replaceState(history.state, "", location.pathname + encode("?", query) + encode("#", fragment));
  here.note();
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

// Start the console: sign in, find the page of the address, draw it, and handle the keyboard.

import { NAMES, go, here, mayOpen, offeredPages, singleKeys } from "./address.js";
import { Unreachable, answerLate, get, resume, session, signIn, signOut } from "./api.js";
import { ask } from "./dialog.js";
import { h, show } from "./dom.js";
import { feed } from "./feed.js";
import { findPlace, restorePlace } from "./place.js";
import { failed, loading } from "./states.js";
import { plain } from "./text.js";

/**
 * @typedef {object} Page
 * @property {any} node
 * @property {Record<string, () => void>} [keys]
 * @property {() => void} [close]
 * @property {() => Record<string, any>} [state] what `open` gets back if the page is returned to
 * @property {() => boolean} [unsaved] whether leaving loses what was typed
 * @property {() => void} [discard] lose it
 */

const RELOADED = "dragoman-reloaded";
const RELOAD_MS = 10_000; // within which a page is not reloaded once more

const main = /** @type {HTMLElement} */ (document.getElementById("main"));
const header = /** @type {HTMLElement} */ (document.getElementById("top"));
/** @type {Page | null} */
let page = null;
let visit = 0;
let pressedG = 0;
let stopRestoring = () => {};

async function draw(moved = true) {
  const mine = ++visit;
  page?.close?.();
  page = null;
  stopRestoring();
  here.note();
  const [name = "", ...rest] = location.pathname.replace(/^\/console\/?/, "").split("/").map(decode);
  if (!name) {
    const first = await firstPage();
    return mine === visit ? go(`/console/${first}`, true) : undefined; // unless another page was opened meanwhile
  }
  mark(name);
  if (!NAMES.includes(name)) {
    show(main, failed(new Error(`There is no page ${plain(name)}. Choose one above.`)));
    return;
  }
  show(main, loading());
  try {
    const module = await importPage(name);
    const made = await module.open({ rest, query: new URLSearchParams(location.search), state: history.state || {} });
    if (mine !== visit) return made.close?.();
    page = made;
    document.title = `${module.title} · dragoman`;
    main.className = name;
    show(main, h("h1", null, module.title), made.node);
    if (moved) main.focus({ preventScroll: true });
    stopRestoring = restorePlace(main, history.state || {});
  } catch (error) {
    if (mine === visit) show(main, failed(error, () => void draw()));
  }
}

/** A part of an address; as it stands where it is not well-formed. @param {string} text */
function decode(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

/** Keep with the address where its reader is, for Back and a reload. */
function remember() {
  if (page) history.replaceState({ ...history.state, ...page.state?.(), ...findPlace() }, "");
}

/** Ask before what was typed is lost. */
async function mayLeave() {
  const left = page;
  if (!left?.unsaved?.()) return true;
  if (document.querySelector("dialog[open]")) return false;
  if (!(await ask("Leave this page?", "What you typed has not been written, and will be lost.", "Leave"))) return false;
  left.discard?.();
  return true;
}

/** @param {string} address @param {boolean} replace */
async function move(address, replace) {
  if (!(await mayLeave())) return;
  remember();
  if (replace) history.replaceState(history.state, "", address);
  else history.pushState({ within: true }, "", address);
  await draw(!replace);
}

/** The browser went back or forward; where something would be lost it stays, until that is agreed to. */
async function follow() {
  if (page?.unsaved?.()) {
    history.pushState({ within: true }, "", here.address);
    if (await mayLeave()) history.back();
    return;
  }
  await draw();
}

/** Load the file of a page. Raises what a person can do about it where that fails. @param {string} name */
async function importPage(name) {
  try {
    return await Promise.race([import(`./pages/${name}.js`), answerLate()]);
  } catch (error) {
    if (error instanceof Unreachable) throw error;
    await get("/console/session"); // raises Unreachable if the gateway has stopped
    if (Date.now() - Number(sessionStorage.getItem(RELOADED)) < RELOAD_MS) throw new Error("A file of this page cannot be loaded, though the gateway runs. Reload the page, or restart the gateway.");
    sessionStorage.setItem(RELOADED, String(Date.now()));
    location.reload(); // it may be another version by now: its page names the files that it has
    return new Promise(() => {});
  }
}

/** The first start shows how to connect a client; later ones show what happens. */
async function firstPage() {
  if (!mayOpen("live")) return offeredPages()[0]?.name || "help";
  try {
    return (await get("/api/v1/requests", { limit: 1 })).requests.length ? "live" : "connect";
  } catch {
    return "live";
  }
}

/** @param {string} name */
function mark(name) {
  for (const link of header.querySelectorAll("nav a")) {
    if (link.getAttribute("href") === `/console/${name}`) {
      link.setAttribute("aria-current", "page");
      link.scrollIntoView({ block: "nearest", inline: "nearest" });
    } else link.removeAttribute("aria-current");
  }
}

function drawHeader() {
  const light = h("span.light", { role: "status" });
  const names = { idle: "", connecting: "Connecting", live: "Live", stale: "Not live: reconnecting", paused: "Paused", refused: "Feed refused" };
  const signs = { idle: "", connecting: "◌", live: "●", stale: "▲", paused: "‖", refused: "✕" };
  const update = () => {
    light.className = `light ${feed.state}`;
    show(light, h("span", { "aria-hidden": "true" }, signs[feed.state]), " ", names[feed.state]);
  };
  feed.addEventListener("state", update);
  update();
  const key = session.about.session.key_name;
  show(header,
    h("a.brand", { href: mayOpen("live") ? "/console/live" : "/console" }, "dragoman"),
    h("nav", { "aria-label": "Pages" }, offeredPages().map((one) => h("a", { href: `/console/${one.name}` }, one.title))),
    h("div.who", null, light,
      h("a", { href: "/console/help", title: "Keyboard and sessions" }, h("kbd", null, "?"), h("span.unseen", null, " Help")),
      h("span.key", { title: `Signed in with the key ${plain(key)}` }, session.about.role === "owner" ? "Owner" : plain(key)),
      h("button.quiet", { type: "button", onclick: signOut }, "Sign out")));
  header.hidden = false;
}

/** @param {string} [why] */
function askForKey(why) {
  page?.close?.();
  page = null;
  feed.stop();
  header.hidden = true;
  document.title = "Sign in · dragoman";
  main.className = "sign-in";
  const problem = h("p.problem", { role: "alert", id: "problem" }, why || "");
  const input = h("input", { type: "password", id: "key", autocomplete: "off", required: true, "aria-describedby": "problem hint", spellcheck: "false" });
  const button = h("button.primary", { type: "submit" }, "Sign in");
  const form = h("form", {
    onsubmit: async (/** @type {Event} */ event) => {
      event.preventDefault();
      button.disabled = true;
      try {
        await signIn({ key: input.value });
        enter();
      } catch (error) {
        problem.textContent = plain(/** @type {Error} */ (error).message);
        button.disabled = false;
        input.focus();
      }
    },
  }, h("label", { for: "key" }, "Client key"), input, problem, button);
  show(main, h("h1", null, "Sign in to dragoman"), form,
    h("p", { id: "hint" }, "Use a key that ", h("code", null, "dragoman keys create"),
      " made. On the gateway's machine you need none: run ", h("code", null, "dragoman console"), "."));
  input.focus();
}

function enter() {
  drawHeader();
  void draw(false);
}

/** @param {KeyboardEvent} event */
function press(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || header.hidden || document.querySelector("dialog[open]")) return;
  const target = event.target instanceof Element ? event.target : null;
  const writing = target?.closest("input:not([type=checkbox]), textarea, select, [contenteditable]");
  if (event.key === "Escape") {
    if (writing instanceof HTMLElement) writing.blur();
    else if (page?.keys?.Escape) page.keys.Escape();
    return;
  }
  if (writing || !singleKeys.on) return;
  if (pressedG && Date.now() - pressedG < 1500) {
    pressedG = 0;
    const target = offeredPages().find((one) => one.key === event.key);
    if (target) {
      event.preventDefault();
      return go(`/console/${target.name}`);
    }
  }
  if (event.key === "g") pressedG = Date.now();
  else if (event.key === "?") go("/console/help");
  else if (page?.keys?.[event.key]) {
    event.preventDefault();
    page.keys[event.key]();
  }
}

/** @param {MouseEvent} event */
function click(event) {
  const link = event.target instanceof Element ? event.target.closest("a") : null;
  const plainClick = event.button === 0 && !event.ctrlKey && !event.metaKey && !event.shiftKey;
  if (!link || !plainClick || link.target || link.origin !== location.origin || link.hasAttribute("download")) return;
  if (!/^\/console(\/|$)/.test(link.pathname)) return;
  event.preventDefault();
  const target = link.pathname === location.pathname && link.hash ? document.getElementById(link.hash.slice(1)) : null;
  if (target) target.focus(); // a part of this page, which is not drawn again
  else go(link.pathname + link.search + link.hash);
}

async function start() {
  addEventListener("popstate", () => void follow());
  addEventListener("go", (event) => void move(/** @type {CustomEvent} */ (event).detail.address, /** @type {CustomEvent} */ (event).detail.replace));
  addEventListener("keydown", press);
  addEventListener("click", click);
  addEventListener("beforeunload", (event) => {
    remember();
    if (page?.unsaved?.()) event.preventDefault();
  });
  addEventListener("token-found", async () => { if (await resume()) enter(); });
  addEventListener("signed-out", (event) => askForKey(/** @type {CustomEvent} */ (event).detail));
  const link = location.hash.startsWith("#t=") ? location.hash.slice(3) : "";
  if (link) history.replaceState(null, "", location.pathname + location.search);
  try {
    if (link) await signIn({ link });
    else if (!(await resume())) return askForKey();
    enter();
  } catch (error) {
    if (link) return askForKey(/** @type {Error} */ (error).message);
    show(main, failed(error, () => location.reload()));
  }
}

void start();

// Connect: how do I point my tool here?

import { keepInAddress, mayOpen } from "../address.js";
import { get, getAll, send, session } from "../api.js";
import { announce, h, show } from "../dom.js";
import { feed } from "../feed.js";
import { failed, fill } from "../states.js";
import { copyButton, lines, plain } from "../text.js";

export const title = "Connect";
const VARIABLE = "$DRAGOMAN_API_KEY";
const ENVIRONMENT = "environment"; // the id of the key in the gateway's own variable
const SEEN = 50;

/** @param {{query: URLSearchParams}} address @returns {import("../main.js").Page} */
export function open({ query }) {
  const view = new Connect(query.get("client") || "", query.get("key") || "");
  feed.addEventListener("hello", view.greet);
  feed.addEventListener("rows", view.hear);
  if (mayOpen("live")) feed.watch({ watch: "live" });
  void fill(view.place, async () => {
    const listed = session.may("keys:read") ? await getAll("/api/v1/keys", "keys") : { keys: [], environment_key: false };
    return { ...(await get("/api/v1/connect")), ...listed };
  }, (data) => view.draw(data));
  return { node: h("div", null, h("p", null, "Choose your client and its key, paste the lines, and send it something."), view.light, view.place),
    close: () => { feed.removeEventListener("hello", view.greet); feed.removeEventListener("rows", view.hear); feed.stop(); } };
}

/** Whether this session gets the requests of its own key and no others. */
function seesOwnOnly() {
  return session.about.role === "client";
}

class Connect {
  /** @param {string} client @param {string} key */
  constructor(client, key) {
    this.client = client;
    this.key = key;
    /** @type {any} the key that was made here, with its secret */
    this.made = null;
    this.since = Infinity; // when this page was opened, by the gateway's clock
    /** @type {any[]} the newest requests since then */
    this.seen = [];
    this.connected = ""; // the request that the light shows
    /** @type {any} */
    this.data = null;
    this.light = h("p.notice", { role: "status" });
    this.place = h("div");
    this.keyPlace = h("div");
    this.panel = h("div", { role: "tabpanel", id: "recipe", tabindex: "0" });
    this.greet = /** @type {EventListener} */ ((/** @type {CustomEvent} */ event) => { this.since = Math.min(this.since, event.detail.time); });
    this.hear = /** @type {EventListener} */ ((/** @type {CustomEvent} */ event) => this.onRows(event.detail.rows));
    this.wait();
  }

  wait() {
    this.connected = "";
    this.light.className = "notice";
    this.light.hidden = !mayOpen("live");
    const known = this.data?.keys.find((/** @type {any} */ one) => one.id === this.key);
    const key = this.key === ENVIRONMENT ? `key in ${VARIABLE}` : known ? `key ${plain(known.name)}` : "";
    if (key || !this.data || seesOwnOnly()) show(this.light, `○ Waiting for the first request ${key ? `with the ${key}` : "of your client"}…`);
    else show(this.light, session.may("keys:read") ? "○ Choose the key of your client: its first request is shown here." : "○ The first request of your client is shown on Live: this token may not list keys.");
  }

  /** @param {any[]} rows */
  onRows(rows) {
    this.seen.push(...rows.filter((row) => row.request_id && row.time > this.since));
    this.seen.splice(0, this.seen.length - SEEN);
    this.look();
  }

  /** Show the newest request of the key, if there is one. */
  look() {
    const newest = this.data && this.seen.findLast((row) => seesOwnOnly() || row.key === this.key);
    if (!newest || newest.request_id === this.connected) return;
    this.connected = newest.request_id;
    this.light.className = "notice good";
    show(this.light, `● ${plain(newest.client || "A client")} is connected: it requested ${plain(newest.requested_model || "a model")}. `, h("a", { href: "/console/live" }, "See it live"));
    announce("A client is connected.");
  }

  /** @param {any} data */
  draw(data) {
    this.data = data;
    const valid = data.keys.filter((/** @type {any} */ key) => key.revoked_at === null && key.role !== "admin");
    const ids = [...(data.environment_key ? [ENVIRONMENT] : []), ...valid.map((/** @type {any} */ key) => key.id)];
    if (!ids.includes(this.key)) this.key = data.environment_key || ids.length === 1 ? ids[0] : "";
    const choose = h("select", { id: "key", onchange: () => { this.key = choose.value; this.update(); } },
      h("option", { value: data.environment_key ? ENVIRONMENT : "" }, data.environment_key || !session.may("keys:read") ? `The one in ${VARIABLE}` : "Not chosen"), valid.map((/** @type {any} */ key) => h("option", { value: key.id, selected: key.id === this.key }, `${plain(key.name)} (${plain(key.prefix)}…${plain(key.last4)})`)));
    const create = h("button", { type: "button", onclick: () => void this.create() }, "Create a key for this client");
    const list = this.tabs();
    this.update();
    return h("div", null, list, h("div.bar", null, h("label.inline", { for: "key" }, "Key"), choose, session.may("keys:write") ? create : null), this.keyPlace, this.panel);
  }

  tabs() {
    const { clients } = this.data;
    if (!clients.some((/** @type {any} */ one) => one.name === this.client)) this.client = clients[0].name;
    /** @type {HTMLButtonElement[]} */
    const tabs = clients.map((/** @type {any} */ one) => h("button", { type: "button", role: "tab", "aria-controls": "recipe", onclick: () => select(one.name) }, one.title.split(", in ")[0]));
    /** @param {string} name */
    const select = (name) => {
      this.client = name;
      mark();
      this.update();
    };
    const mark = () => tabs.forEach((tab, at) => {
      tab.setAttribute("aria-selected", String(clients[at].name === this.client));
      tab.tabIndex = clients[at].name === this.client ? 0 : -1;
    });
    mark();
    return h("div.tabs", {
      role: "tablist", "aria-label": "Clients",
      onkeydown: (/** @type {KeyboardEvent} */ event) => {
        const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
        if (!step) return;
        const next = (tabs.findIndex((tab) => tab.tabIndex === 0) + step + tabs.length) % tabs.length;
        select(clients[next].name);
        tabs[next].focus();
      },
    }, tabs);
  }

  async create() {
    const taken = new Set(this.data.keys.map((/** @type {any} */ key) => key.name));
    let name = this.client;
    for (let number = 2; taken.has(name); number++) name = `${this.client} ${number}`;
    try {
      this.made = await (await send("POST", "/api/v1/keys", { name })).json();
      this.data.keys.push(this.made);
      this.key = this.made.id;
      show(this.place, this.draw(this.data));
      this.keyPlace.querySelector("button")?.focus();
      announce(`The key ${name} is made.`);
    } catch (error) {
      show(this.keyPlace, failed(error));
    }
  }

  update() {
    keepInAddress({ client: this.client, key: this.key });
    this.wait();
    this.look();
    const client = this.data.clients.find((/** @type {any} */ one) => one.name === this.client);
    const secret = this.made?.id === this.key ? this.made.secret : "";
    show(this.keyPlace, this.explainKey(secret));
    const text = client.lines.join("\n").replaceAll(`the value of ${VARIABLE}`, secret || `the value of ${VARIABLE}`);
    const file = client.title.split(", in ")[1];
    show(this.panel, file ? h("p", null, "Add these lines to ", h("code", null, plain(file)), ".") : null,
      h("div.bar", null, copyButton(() => text, "Copy the lines"), client.writes ? [copyButton(() => `dragoman connect ${client.name} --write`, "Copy the command"), h("span.soft", null, "The command writes them into the client's own file.")] : null),
      h("pre.text", { tabindex: "0" }, lines(text)), client.notes.map((/** @type {string} */ note) => h("p.soft", null, plain(note))));
  }

  /** Where the client finds the key. @param {string} secret of a key that was just made */
  explainKey(secret) {
    if (secret) {
      const line = `export DRAGOMAN_API_KEY=${secret}`;
      return h("section.notice.good", null, h("p", null, "The new key is shown only now. Set it where you start the client:"), h("div.bar", null, h("code", null, line), copyButton(() => line)));
    }
    const key = this.data.keys.find((/** @type {any} */ one) => one.id === this.key);
    if (!key) return h("p.soft", null, "The lines read the key from ", h("code", null, VARIABLE), " of your shell.");
    return h("p.soft", null, "The secret of this key was shown when it was made: set it as ", h("code", null, VARIABLE), ". If it is lost, ", h("a", { href: "/console/keys" }, "rotate the key"), ".");
  }
}

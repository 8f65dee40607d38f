// Connect: how do I point my tool here?

import { keepInAddress } from "../address.js";
import { get } from "../api.js";
import { announce, h, show } from "../dom.js";
import { feed } from "../feed.js";
import { fill } from "../states.js";
import { copyButton, lines, plain } from "../text.js";

export const title = "Connect";

/** @param {{query: URLSearchParams}} address @returns {import("../main.js").Page} */
export function open({ query }) {
  const place = h("div");
  const light = h("p.notice", { role: "status" }, "○ Waiting for the first request of your client…");
  let seen = -1;
  /** @param {CustomEvent} event */
  const onRows = (event) => {
    const newest = event.detail.rows.reduce((/** @type {any} */ best, /** @type {any} */ row) => (row.number > (best?.number ?? -1) && row.request_id ? row : best), null);
    if (seen < 0) {
      seen = newest ? newest.number : 0;
      return;
    }
    if (!newest || newest.number <= seen) return;
    seen = newest.number;
    light.className = "notice good";
    show(light, `● ${plain(newest.client || "A client")} is connected: it requested ${plain(newest.requested_model || "a model")}. `, h("a", { href: "/console/live" }, "See it live"));
    announce("A client is connected.");
  };
  const hear = /** @type {EventListener} */ (onRows);
  feed.addEventListener("rows", hear);
  feed.watch({ watch: "live" });
  void fill(place, () => get("/api/v1/connect"), (data) => recipes(data, query.get("client") || ""));
  return {
    node: h("div", null, h("p", null, "Choose your client, paste the lines, and send it something. The key is read from ", h("code", null, "$DRAGOMAN_API_KEY"), "."), light, place),
    close: () => { feed.removeEventListener("rows", hear); feed.stop(); },
  };
}

/** @param {any} data @param {string} chosen */
function recipes(data, chosen) {
  const panel = h("div", { role: "tabpanel", id: "recipe", tabindex: "0" });
  /** @type {HTMLButtonElement[]} */
  const tabs = data.clients.map((/** @type {any} */ client, /** @type {number} */ index) => h("button", { type: "button", role: "tab", "aria-controls": "recipe", onclick: () => select(index) }, client.title));
  /** @param {number} index */
  function select(index) {
    const client = data.clients[index];
    for (const [at, tab] of tabs.entries()) {
      tab.setAttribute("aria-selected", String(at === index));
      tab.tabIndex = at === index ? 0 : -1;
    }
    keepInAddress({ client: client.name });
    const text = client.lines.join("\n");
    show(panel, h("div.bar", null, copyButton(() => text, "Copy the lines"), client.writes ? [copyButton(() => `dragoman connect ${client.name} --write`, "Copy the command"), h("span.soft", null, "The command writes them into the client's own file.")] : null),
      h("pre.text", { tabindex: "0" }, lines(text)), client.notes.map((/** @type {string} */ note) => h("p.soft", null, plain(note))));
  }
  const list = h("div.tabs", {
    role: "tablist", "aria-label": "Clients",
    onkeydown: (/** @type {KeyboardEvent} */ event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (!step) return;
      const next = (tabs.findIndex((tab) => tab.getAttribute("aria-selected") === "true") + step + tabs.length) % tabs.length;
      select(next);
      tabs[next].focus();
    },
  }, tabs);
  select(Math.max(0, data.clients.findIndex((/** @type {any} */ client) => client.name === chosen)));
  return h("div", null, list, panel);
}

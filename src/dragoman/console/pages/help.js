// Help: the keyboard, and the browsers that are signed in.

import { offeredPages, singleKeys } from "../address.js";
import { get, send } from "../api.js";
import { h } from "../dom.js";
import { ago, exactTime, ZONE } from "../format.js";
import { fill } from "../states.js";
import { plain } from "../text.js";

export const title = "Help";
const KEYS = [
  ["j / k", "next and previous row"], ["Enter", "open the row"], ["Esc", "back, or leave a field"], ["/", "the filter"], ["f", "freeze the live list; follow the end of a live stream"], ["r", "replay, in the inspector"], ["?", "this page"],
];

/** @returns {import("../main.js").Page} */
export function open() {
  const sessions = h("div");
  const draw = () => fill(sessions, () => get("/console/sessions"), (data) => sessionTable(data.sessions, draw));
  void draw();
  const check = h("input", { type: "checkbox", onchange: () => singleKeys.set(check.checked) });
  check.checked = singleKeys.on;
  return {
    node: h("div", null,
      h("h2", null, "Keyboard"), h("label.check", null, check, "Single keys are commands"),
      h("dl.facts", null, [...offeredPages().map((page) => [`g ${page.key}`, page.title]), ...KEYS].map(([key, what]) => [h("dt", null, h("kbd", null, key)), h("dd", null, what)]).flat()),
      h("h2", null, "Browsers that are signed in"), sessions,
      h("h2", null, "Who sees what"),
      h("p", null, "The owner sees everything: requests of all keys, their content, accounts and settings. Every look at content is in the audit log. Any other key sees its own requests and usage, without content. Secrets are masked by the gateway and never reach the browser; a new key is shown once."),
      h("p", null, `Times are in your browser's zone, ${ZONE}. "≈" marks what is estimated, "~" what is derived, "no price" what has no known price.`)),
  };
}

/** @param {any[]} sessions @param {() => void} again */
function sessionTable(sessions, again) {
  return h("div.scroll", { tabindex: "0" }, h("table.stack", null, h("caption.unseen", null, "Sessions"),
    h("thead", null, h("tr", null, ["Browser", "Address", "Key", "Signed in", "Last used", "Action"].map((name) => h("th", { scope: "col" }, name)))),
    h("tbody", null, sessions.map((one) => h("tr", null,
      h("td.text", null, plain(one.browser)), h("td", { "data-label": "Address" }, plain(one.address)), h("td", { "data-label": "Key" }, plain(one.key_name)),
      h("td.nowrap", { "data-label": "Signed in", title: exactTime(one.created_at * 1000) }, ago(one.created_at * 1000)), h("td.nowrap", { "data-label": "Last used", title: exactTime(one.used_at * 1000) }, ago(one.used_at * 1000)),
      h("td", null, one.is_this ? "this one" : h("button.quiet", { type: "button", onclick: async () => { await send("DELETE", `/console/sessions/${one.id}`); again(); } }, "End")))))));
}

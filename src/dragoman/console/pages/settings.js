// Settings: what is in force, and who set it?

import { get } from "../api.js";
import { h } from "../dom.js";
import { empty, fill } from "../states.js";
import { plain, quote } from "../text.js";
import { keepInAddress } from "../address.js";

export const title = "Settings";

/** @param {{query: URLSearchParams}} address @returns {import("../main.js").Page} */
export function open({ query }) {
  const place = h("div");
  const input = h("input.grow", { type: "search", id: "find", placeholder: "retry, providers.kiro, capture …", autocomplete: "off" });
  input.value = query.get("q") || "";
  const only = h("input", { type: "checkbox" });
  only.checked = query.get("set") === "1";
  /** @type {any} */
  let data = null;
  const draw = () => {
    keepInAddress({ q: input.value, set: only.checked ? "1" : "" });
    if (data) place.replaceChildren(report(data, input.value, only.checked));
  };
  input.addEventListener("input", draw);
  only.addEventListener("change", draw);
  void fill(place, () => get("/api/v1/config"), (loaded) => { data = loaded; return report(data, input.value, only.checked); });
  return {
    node: h("div", null, h("div.bar", { role: "search" }, h("label.unseen", { for: "find" }, "Find a setting"), input, h("label.check", null, only, "Only what differs from the defaults")), place),
    keys: { "/": () => input.focus() },
  };
}

/** @param {any} data @param {string} wanted @param {boolean} onlySet */
function report(data, wanted, onlySet) {
  const found = data.settings.filter((/** @type {any} */ one) => one.key.toLowerCase().includes(wanted.toLowerCase()) && (!onlySet || one.origin !== "default"));
  return h("div", null,
    h("p", null, "File: ", h("code", null, plain(data.source)), ". Edit it with your editor: changes take effect within a second, and a bad edit changes nothing. Secrets are masked."),
    data.warnings.map((/** @type {string} */ warning) => h("p.notice", null, quote(warning, 1000))),
    found.length ? table(found) : empty("No setting fits", "Remove the filter to see all."));
}

/** @param {any[]} settings */
function table(settings) {
  return h("div.scroll", { tabindex: "0", role: "region", "aria-label": "Settings" }, h("table", null, h("caption.unseen", null, "Settings in force"),
    h("thead", null, h("tr", null, ["Setting", "Value", "Set by"].map((name) => h("th", { scope: "col" }, name)))),
    h("tbody", null, settings.map((one) => h("tr", null, h("th.text", { scope: "row" }, h("code", null, plain(one.key))),
      h("td.text.mono", null, quote(one.value === null ? "not set" : Array.isArray(one.value) ? JSON.stringify(one.value) : String(one.value), 500)),
      h("td.text", null, one.origin === "default" ? h("span.soft", null, "default") : plain(one.origin)))))));
}

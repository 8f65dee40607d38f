// Models: who answers what, and how well? With one prompt to several models, side by side.

import { keepInAddress } from "../address.js";
import { get } from "../api.js";
import { h, setText, show } from "../dom.js";
import { exactTime, money, tokens } from "../format.js";
import { empty, fill } from "../states.js";
import { plain, quote } from "../text.js";
import { Trial } from "../trial.js";

export const title = "Models";
const SHOWN = 300;
/** @type {Record<string, string>} */
const PROTOCOLS = { chat: "Chat Completions", responses: "Responses", messages: "Messages", gemini: "Gemini" };
/** @type {Record<string, string>} */
const UPSTREAMS = { ...PROTOCOLS, kiro: "Kiro's own protocol" };

/** @param {{query: URLSearchParams}} address @returns {import("../main.js").Page} */
export function open({ query }) {
  const place = h("div");
  const trial = new Trial(query.getAll("try"), new URLSearchParams(location.hash.slice(1)).get("prompt") || "");
  void fill(place, async () => ({ ...(await get("/api/v1/models")), losses: await readMatrix() }), (data) => {
    trial.setNames(namesFor(data));
    return h("div", null, problems(data.providers), trial.node, routes(data.routes), catalogue(data.models, data.providers, query.get("q") || ""), translation(data));
  });
  return { node: place, close: () => trial.stop() };
}

/** What the tests have found that translations lose: client -> upstream -> rows. @returns {Promise<any>} */
async function readMatrix() {
  return (await fetch(new URL("../losses.json", import.meta.url))).json();
}

/** The names that a client can use. @param {any} data */
function namesFor(data) {
  const configured = data.routes.map((/** @type {any} */ route) => route.name).filter((/** @type {string} */ name) => !/[*?[]/.test(name));
  return [...new Set([...configured, ...data.models.map((/** @type {any} */ one) => one.names[0] || `${one.provider}/${one.model}`)])];
}

/** @param {any[]} providers */
function problems(providers) {
  return providers.filter((one) => one.problem).map((one) => h("p.notice", null, `The models of ${plain(one.name)} could not be listed: `, quote(one.problem, 500), ". ", h("a", { href: "/console/doctor" }, "Doctor"), " checks it."));
}

/** @param {any[]} list */
function routes(list) {
  const section = h("section", null, h("h2", null, "Routes, the first match wins"));
  if (!list.length) {
    section.append(h("p.soft", null, "None are configured: clients use the names below, or provider/model."));
    return section;
  }
  section.append(h("div.scroll", { tabindex: "0" }, h("table", null, h("caption.unseen", null, "Routes"),
    h("thead", null, h("tr", null, h("th", { scope: "col" }, "Requested name"), h("th", { scope: "col" }, "Targets, in order"))),
    h("tbody", null, list.map((route) => h("tr", null, h("th.text", { scope: "row" }, h("code", null, plain(route.name))), h("td", null, route.targets.map(target))))))));
  return section;
}

/** @param {any} one @param {number} index */
function target(one, index) {
  const cooldown = one.cooling_down_until ? h("span.warn", { title: exactTime(one.cooling_down_until * 1000) }, " ▲ cooling down") : null;
  return h("div", null, `${index + 1}. `, quote(`${one.provider}/${one.model}`), cooldown);
}

/** @param {any[]} models @param {any[]} providers @param {string} search */
function catalogue(models, providers, search) {
  const protocols = new Map(providers.map((one) => [one.name, one.protocols.join(", ")]));
  const input = h("input.grow", { type: "search", placeholder: "Find a model", "aria-label": "Find a model" });
  input.value = search;
  const body = h("tbody");
  const note = h("p.soft");
  const draw = () => {
    const found = models.filter((one) => `${one.provider}/${one.model} ${one.name}`.toLowerCase().includes(input.value.toLowerCase()));
    show(body, found.slice(0, SHOWN).map((one) => h("tr", null,
      h("th.text", { scope: "row" }, quote(one.model), one.name && one.name !== one.model ? h("div.soft", null, quote(one.name)) : null),
      h("td.nowrap", null, plain(one.provider), h("div.soft", null, plain(protocols.get(one.provider) || "")), one.credit_rate === null ? null : h("div.soft", null, `credits × ${one.credit_rate}`)), h("td.text", null, one.names.map((/** @type {string} */ name) => [h("code", null, plain(name)), " "]).flat()),
      h("td.number", null, tokens(one.max_input)), h("td.number", null, tokens(one.max_output)), prices(one.usd_per_million))));
    setText(note, found.length > SHOWN ? `${found.length} models, the first ${SHOWN} are shown.` : `${found.length} models`);
  };
  input.addEventListener("input", () => {
    const query = new URLSearchParams(location.search);
    keepInAddress({ try: query.getAll("try"), q: input.value }, Object.fromEntries(new URLSearchParams(location.hash.slice(1))));
    draw();
  });
  draw();
  if (!models.length) return empty("No models", "No provider has listed any. ", h("a", { href: "/console/doctor" }, "Doctor"), " says why.");
  return h("section", null, h("h2", null, "Catalogue"), h("div.bar", null, input), note, h("div.scroll", { tabindex: "0" }, h("table", null, h("caption.unseen", null, "Models"),
    h("thead", null, h("tr", null, ["Model", "Provider, protocols", "Names for clients"].map((name) => h("th", { scope: "col" }, name)),
      ["Window", "Longest reply", "$/M in", "$/M out", "$/M cached"].map((name) => h("th.number", { scope: "col" }, name)))), body)));
}

/** @param {any} price */
function prices(price) {
  if (!price) return h("td.number.soft", { colspan: "3" }, "no known price");
  return ["input", "output", "cache_read"].map((kind) => h("td.number", null, price[kind] === null ? "as input" : money(price[kind])));
}

/** What a request of each protocol loses at the protocols that the providers speak. @param {any} data */
function translation(data) {
  /** @type {string[]} */
  const upstreams = [...new Set(data.providers.flatMap((/** @type {any} */ one) => one.protocols))];
  const known = upstreams.filter((name) => name in UPSTREAMS);
  const others = upstreams.filter((name) => !(name in UPSTREAMS));
  return h("section", null, h("h2", null, "What a translation loses"),
    h("p", null, "A request that is answered in its client's own protocol passes unchanged. Otherwise these fields are lost; ", h("a", { href: "/console/requests?q=losses>0" }, "requests with losses"), " shows what was lost."),
    known.length ? h("div.scroll", { tabindex: "0" }, h("table", null, h("caption.unseen", null, "Losses by protocol"),
      h("thead", null, h("tr", null, h("th", { scope: "col" }, "Client speaks"), known.map((name) => h("th", { scope: "col" }, `Provider speaks ${UPSTREAMS[name]}`)))),
      h("tbody", null, Object.keys(PROTOCOLS).map((client) => h("tr", null, h("th.text", { scope: "row" }, PROTOCOLS[client]), known.map((upstream) => h("td.text", null, pair(data.losses, client, upstream)))))))) : null,
    others.length ? h("p.soft", null, `For ${others.map(plain).join(", ")} there is no such table: each request's own list is in the inspector.`) : null);
}

/** @param {any} losses @param {string} client @param {string} upstream */
function pair(losses, client, upstream) {
  if (client === upstream) return h("span", null, h("span.mark.ok", { "aria-hidden": "true" }, "● "), "unchanged");
  /** @type {[string, string, string][]} */
  const rows = losses[client]?.[upstream] || [];
  return h("details", null, h("summary", null, `${rows.length} fields`), h("ul.plain", { tabindex: "0", "aria-label": `Lost from ${PROTOCOLS[client]} to ${PROTOCOLS[upstream]}` }, rows.map(([field, how, why]) => h("li", null, h("code", null, field), ` ${how}: ${why}`))));
}

// Why a prompt cache had less of a request than it could; loaded by the inspector on request.

import { get } from "./api.js";
import { announce, h, show } from "./dom.js";
import { number } from "./format.js";
import { failed, loading } from "./states.js";
import { plain, quote } from "./text.js";

/** Ask the gateway, and show its answer. @param {string} id of the request @param {HTMLElement} place */
export async function explainCache(id, place) {
  show(place, loading("Comparing it with the request before…"));
  try {
    const found = await get(`/api/v1/requests/${encodeURIComponent(id)}/cache`);
    show(place, answer(found));
    announce(`Prompt cache: ${plain(found.verdict)}`);
  } catch (error) {
    show(place, failed(error));
  }
}

/** @param {any} found */
function answer(found) {
  const facts = [
    ["Verdict", `${plain(found.verdict)}${found.cause ? `: ${plain(found.cause)}` : ""}`],
    ["Why", quote(found.detail, 500)],
    ["Compared with", found.against ? h("a", { href: `/console/inspect/${encodeURIComponent(found.against)}` }, plain(found.against)) : null],
    ["First byte", found.first_byte === null ? null : number(found.first_byte)],
    ["In the upstream's request", found.upstream_path ? h("code", null, plain(found.upstream_path)) : null],
    ["In the client's request", found.client_path ? h("code", null, plain(found.client_path)) : null],
    ["Tokens", found.tokens_after === null ? null : `${number(found.tokens_before)} before the first difference, ${number(found.tokens_after)} after it`],
    ["Read", found.read_tokens === null ? null : `${number(found.read_tokens)}${found.possible_tokens === null ? "" : ` of ${number(found.possible_tokens)} possible`}`],
    ["What to do", found.remedy ? quote(found.remedy, 500) : null],
    ["Known from", found.source === "captures" ? "captures" : "the row; two captures would tell what differs"],
  ].filter(([, value]) => value !== null && value !== "");
  return h("section.card", null, h("h2", null, "Prompt cache"),
    h("dl.facts", null, facts.map(([name, value]) => [h("dt", null, name), h("dd", null, value)]).flat()),
    found.later === null ? null : h("div.diff", null, h("div.del", null, `- ${plain(found.earlier)}`), h("div.add", null, `+ ${plain(found.later)}`)));
}

// Doctor: what is broken?

import { send, session } from "../api.js";
import { announce, h, show } from "../dom.js";
import { readLines } from "../lines.js";
import { failed, loading } from "../states.js";
import { copyButton, plain, quote } from "../text.js";

export const title = "Doctor";
/** @type {Record<string, [string, string]>} */
const MARKS = { ok: ["●", "ok"], warning: ["▲", "warn"], broken: ["✕", "bad"] };

/** @returns {import("../main.js").Page} */
export function open() {
  const control = new AbortController();
  /** @type {Record<string, HTMLElement>} rows of each state, the worst first, while they arrive in any order */
  const groups = { broken: h("tbody"), warning: h("tbody"), ok: h("tbody") };
  const state = h("div", { role: "status" });
  const again = h("button", { type: "button", onclick: () => void run() }, "Check again");
  const table = h("div.scroll", { tabindex: "0", role: "region", "aria-label": "Findings" }, h("table.stack", null, h("caption.unseen", null, "Findings"),
    h("thead", null, h("tr", null, ["State", "What", "Found", "To do"].map((name) => h("th", { scope: "col" }, name)))), Object.values(groups)));

  async function run() {
    again.disabled = true;
    for (const group of Object.values(groups)) group.replaceChildren();
    table.hidden = true;
    show(state, loading("Checking configuration, store, keys, providers and clock…"));
    /** @type {Record<string, number>} */
    const counts = { ok: 0, warning: 0, broken: 0 };
    try {
      const response = await send("GET", "/api/v1/doctor", undefined, { signal: control.signal });
      for await (const finding of readLines(response)) {
        counts[finding.state] += 1;
        groups[finding.state].append(row(finding));
        table.hidden = false;
      }
      const text = `${counts.broken} broken, ${counts.warning} to look at, ${counts.ok} fine`;
      show(state, h(counts.broken ? "p.notice.bad" : counts.warning ? "p.notice" : "p.notice.good", null, text));
      announce(text);
    } catch (error) {
      if (!control.signal.aborted) show(state, failed(error, () => void run()));
    } finally {
      again.disabled = false;
    }
  }

  void run();
  return { node: h("div", null, h("div.bar", null, again), state, table), close: () => control.abort() };
}

/** The page of the console that does what a command does. @param {string} command */
function pageFor(command) {
  const [, verb, what = ""] = command.split(" ");
  if (verb === "login" && session.may("accounts:write")) return h("a.button", { href: `/console/accounts?${new URLSearchParams({ "sign-in": what })}` }, "Sign in here");
  if (verb === "keys" && session.may("keys:write")) return h("a.button", { href: "/console/keys" }, "Open Keys");
  return null;
}

/** @param {any} finding */
function row(finding) {
  const [sign, colour] = MARKS[finding.state] || ["?", "soft"];
  const command = /`(dragoman [^`]+)`/.exec(finding.to_do || "")?.[1] || "";
  return h("tr", null,
    h("td.nowrap", null, h(`span.mark.${colour}`, { "aria-hidden": "true" }, sign), ` ${plain(finding.state)}`),
    h("th.text", { scope: "row" }, plain(finding.what)), h("td.text", null, quote(finding.found, 1000)),
    h("td.text", null, quote(finding.to_do || "", 1000), command ? h("div.bar.below", null, copyButton(() => command, "Copy command"), pageFor(command)) : null));
}

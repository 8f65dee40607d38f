// Budgets: who may still use how much?

import { get, getAll, send, session } from "../api.js";
import { meter } from "../chart.js";
import { ask, dialog } from "../dialog.js";
import { announce, h } from "../dom.js";
import { ago, exactTime, money, number, tokens } from "../format.js";
import { empty, fill } from "../states.js";
import { plain } from "../text.js";

export const title = "Budgets";
const DAY_MS = 86_400_000;
const SESSION_DAYS = 30;
const DEAREST = 3;
const MOST = 3; // of those that a default is for
const EARLY = 0.1; // of a window, before which its end cannot be forecast
/** @type {Record<string, [string, "usd" | "tokens" | "credits" | "requests", string]>} limit -> its label, its unit, its window */
const LIMITS = {
  usd_per_day: ["Dollars per day", "usd", "day"], usd_per_week: ["Dollars per week", "usd", "week"], usd_per_month: ["Dollars per month", "usd", "month"], usd_per_total: ["Dollars in all", "usd", ""],
  tokens_per_day: ["Tokens per day", "tokens", "day"], tokens_per_month: ["Tokens per month", "tokens", "month"], tokens_per_total: ["Tokens in all", "tokens", ""],
  credits_per_month: ["Credits per month", "credits", "month"],
  requests_per_min: ["Requests per minute", "requests", ""], tokens_per_min: ["Tokens per minute", "tokens", ""], concurrent: ["Requests at the same time", "requests", ""],
};
/** @type {Record<string, string>} scope -> what its name is asked for; those without a name have none */
const NAMED = { team: "Team", user: "User", key: "Key", each_user: "Team", provider: "Providers, separated by commas" };

/** @returns {import("../main.js").Page} */
export function open() {
  const view = new Budgets();
  void view.load();
  return { node: view.node };
}

class Budgets {
  constructor() {
    this.place = h("div");
    /** @type {Set<string>} scopes whose most expensive sessions are shown */
    this.opened = new Set();
    const add = h("button.primary", { type: "button", onclick: () => void this.add() }, "Set limits");
    this.node = h("div", null, h("div.bar", null, session.may("limits:write") ? add : null, h("button", { type: "button", onclick: () => void this.load() }, "Read again")), this.place);
  }

  load() {
    return fill(this.place, loadAll, (data) => this.cards(data.limits, data.each));
  }

  /** @param {any[]} limits @param {any[]} each the same, with what users and keys get by default */
  cards(limits, each) {
    if (!limits.length) return empty("Nothing is limited", "Every key may use as much as it likes. Set a limit for all keys together, a team, a user, a key or a provider.");
    /** @type {Map<string, any[]>} */
    const scopes = new Map();
    for (const one of limits) scopes.set(`${one.scope}/${one.name}`, [...(scopes.get(`${one.scope}/${one.name}`) || []), one]);
    return h("div.cards", null, [...scopes.values()].map((rows) => this.card(rows, each)));
  }

  /** @param {any[]} rows the limits of one scope @param {any[]} each */
  card(rows, each) {
    const [{ scope, name }] = rows;
    const own = each.filter((other) => other.set_for === `${scope}:${name}`);
    const inFile = rows.filter((one) => one.origin === "file").length;
    const title = describe(scope, name);
    const mayChange = session.may("limits:write") && inFile < rows.length;
    return h("article.card", null, h("h2", null, title[0].toUpperCase() + title.slice(1)),
      inFile ? h("p.soft", null, inFile === rows.length ? "Set in the configuration file: change it there." : "Some are set in the configuration file: change them there.") : null,
      rows.map((one) => limitRow(one, own.filter((other) => other.limit === one.limit))),
      session.may("usage:read") ? this.sessions(`${scope}/${name}`, title, isDefault(rows[0]) ? listSpenders(own) : [[scope, name]]) : null,
      session.may("limits:write") ? h("div.bar.below", null,
        h("button", { type: "button", onclick: () => void this.edit(scope, name, title) }, mayChange ? "Change" : "Add a limit"),
        mayChange ? h("button.quiet.bad", { type: "button", onclick: () => void this.remove(scope, name, title) }, "Remove") : null) : null);
  }

  /** What is read once it is opened. @param {string} id @param {string} title @param {[string, string][]} scopes those who have the sessions */
  sessions(id, title, scopes) {
    const place = h("div");
    const node = h("details", {
      open: this.opened.has(id),
      ontoggle: () => {
        this.opened[node.open ? "add" : "delete"](id);
        if (node.open && !place.firstChild) void fill(place, () => readSessions(scopes.flatMap(listFilters)), (sums) => showSessions(title, scopes.flatMap(listFilters), sums));
      },
    }, h("summary", null, "Most expensive sessions"), place);
    return node;
  }

  async add() {
    const scope = h("select", { id: "scope" }, Object.entries({ all: "All keys together", team: "A team, together", each_user: "Each user of a team", user: "A user", key: "A key", provider: "Providers, together", "user/*": "Each user, unless it has its own", "key/*": "Each key, unless it has its own" })
      .map(([value, text]) => h("option", { value }, text)));
    const name = h("input", { id: "name", autocomplete: "off", maxlength: "200" });
    const label = h("label", { for: "name" }, "Name");
    const group = h("div", { hidden: true }, label, name);
    scope.addEventListener("change", () => {
      group.hidden = !NAMED[scope.value];
      name.required = !group.hidden;
      label.textContent = NAMED[scope.value] || "Name";
    });
    /** @type {[string, string] | null} */
    let chosen = null;
    const done = await dialog("Set limits for", [h("label", { for: "scope" }, "Who"), scope, group], "Next", async () => {
      const [kind, each] = scope.value.split("/");
      const found = /** @type {[string, string]} */ ([kind, each || (NAMED[kind] ? name.value.trim() : "all")]);
      await readStored(...found); // it fails if there is none of this name
      chosen = found;
    });
    if (done && chosen) await this.edit(chosen[0], chosen[1], describe(chosen[0], chosen[1]));
  }

  /** @param {string} scope @param {string} name @param {string} title */
  async edit(scope, name, title) {
    let stored;
    try {
      stored = await readStored(scope, name);
    } catch (error) {
      announce(plain(/** @type {Error} */ (error).message));
      return this.load();
    }
    const fields = Object.entries(LIMITS).map(([limit, [text]]) => {
      const fixed = stored.in_file[limit];
      const input = h("input", { id: limit, name: limit, inputmode: "decimal", autocomplete: "off", placeholder: "no limit", value: fixed ?? stored.limits[limit] ?? "", disabled: fixed !== undefined });
      return h("div", null, h("label", { for: limit }, text), input, fixed === undefined ? null : h("span.soft", null, " set in the file"));
    });
    const form = h("div.fields", null, fields);
    const done = await dialog(`Limits of ${title}`, [h("p", null, "Empty: no limit. 0: nothing is allowed. What was spent stays."), form], "Save", async () => {
      const inputs = /** @type {HTMLInputElement[]} */ ([...form.querySelectorAll("input:enabled")]);
      const given = inputs.filter((input) => input.value.trim());
      const limits = Object.fromEntries(given.map((input) => [input.name, readNumber(input)]));
      await send("PUT", path(scope, name), limits, { headers: { "if-match": `"${stored.version}"` } });
      announce(`The limits of ${title} are set.`);
    });
    if (done) await this.load();
  }

  /** @param {string} scope @param {string} name @param {string} title */
  async remove(scope, name, title) {
    const stored = await readStored(scope, name);
    const names = Object.keys(stored.limits).map((limit) => LIMITS[limit]?.[0] || limit).join(", ");
    if (!(await ask(`Remove the limits of ${title}?`, `${names}. Requests are no longer refused because of them; what was spent stays in Usage.`, "Remove"))) return;
    await send("DELETE", path(scope, name), undefined, { headers: { "if-match": `"${stored.version}"` } });
    announce(`The limits of ${title} are removed.`);
    await this.load();
  }
}

/** The limits, and what each user and key gets by default. */
async function loadAll() {
  const [{ limits }, { limits: each }] = await Promise.all([getAll("/api/v1/limits", "limits"), getAll("/api/v1/limits", "limits", { effective: 1 })]);
  return { limits, each };
}

/** Whether each of its users or keys counts for itself. @param {any} one a limit */
function isDefault(one) {
  return one.name === "*" || one.scope === "each_user";
}

/** Those who have spent most of some limits. @param {any[]} limits @returns {[string, string][]} scopes and names */
function listSpenders(limits) {
  const most = Object.keys(LIMITS).flatMap((limit) => findMost(limits.filter((one) => one.limit === limit)));
  return [...new Map(most.map((one) => [one.name, /** @type {[string, string]} */ ([one.scope, one.name])])).values()];
}

/** @param {any[]} each what users or keys have of a limit */
function findMost(each) {
  return each.filter((one) => one.spent).sort((a, b) => b.spent - a.spent).slice(0, MOST);
}

/** The filters of its requests, each of which finds a part. @param {[string, string]} scope and name */
function listFilters([scope, name]) {
  if (scope === "all") return [""];
  return (scope === "provider" ? name.split(",") : [name]).map((one) => `${scope}:"${one}"`);
}

/** The sums of the sessions that filters find. @param {string[]} filters */
async function readSessions(filters) {
  const read = { by: "session", since_ms: Date.now() - SESSION_DAYS * DAY_MS, step: "all" };
  const parts = await Promise.all(filters.map((q) => get("/api/v1/usage", { ...read, q })));
  /** @type {Map<string, any>} */
  const sums = new Map();
  for (const part of parts.flatMap((part) => part.sums)) {
    const known = sums.get(part.group) || { group: part.group, requests: 0, cost_nano_usd: 0, estimated: 0, derived: 0 };
    for (const name of ["requests", "cost_nano_usd", "estimated", "derived"]) known[name] += part[name];
    sums.set(part.group, known);
  }
  return [...sums.values()];
}

/** @param {string} title @param {string[]} filters @param {any[]} sessions sums of usage */
function showSessions(title, filters, sessions) {
  const caption = `Most expensive sessions of ${title}, last ${SESSION_DAYS} days`;
  const only = filters.length === 1 ? ` ${filters[0]}` : "";
  const found = sessions.filter((one) => one.group && one.cost_nano_usd > 0).sort((a, b) => b.cost_nano_usd - a.cost_nano_usd).slice(0, DEAREST);
  if (!found.length) return h("p.soft", null, `No session with a cost in the last ${SESSION_DAYS} days.`);
  return h("div.scroll", { tabindex: "0", role: "region", "aria-label": caption }, h("table", null, h("caption.unseen", null, caption),
    h("thead", null, h("tr", null, h("th", { scope: "col" }, "Session"), ["Requests", "Cost"].map((name) => h("th.number", { scope: "col" }, name)))),
    h("tbody", null, found.map((one) => h("tr", null, h("th.text", { scope: "row" }, h("a", { href: `/console/requests?q=${encodeURIComponent(`session:"${one.group}"${only}`.trim())}` }, plain(one.group))),
      h("td.number", null, number(one.requests)), h("td.number", null, (one.estimated ? "≈ " : one.derived ? "~ " : "") + money(one.cost_nano_usd / 1e9)))))));
}

/** @param {string} scope @param {string} name */
function path(scope, name) {
  return `/api/v1/limits/${encodeURIComponent(scope)}/${encodeURIComponent(name)}`;
}

/** What the store and the file have for a scope. @param {string} scope @param {string} name */
async function readStored(scope, name) {
  return (await send("GET", path(scope, name))).json();
}

/** @param {HTMLInputElement} input */
function readNumber(input) {
  const value = Number(input.value.trim());
  if (!Number.isFinite(value) || value < 0) throw new Error(`${LIMITS[input.name][0]}: "${input.value.trim()}" is not a number of 0 or more.`);
  return value;
}

/** @param {string} scope @param {string} name */
function describe(scope, name) {
  if (scope === "all") return "all keys together";
  if (name === "*") return `each ${scope}`;
  return scope === "each_user" ? `each user of the team ${plain(name)}` : `the ${scope} ${plain(name)}`;
}

/** @param {number | null} amount @param {string} unit */
function quantity(amount, unit) {
  return unit === "usd" ? money(amount) : unit === "tokens" ? tokens(amount) : number(amount);
}

/** @param {any} one @param {any[]} each those that it is a default for */
function limitRow(one, each) {
  const [text] = LIMITS[one.limit] || [plain(one.limit)];
  const value = quantity(one.value, unitOf(one));
  if (isDefault(one)) {
    const most = findMost(each);
    return h("section.limit", null, h("h3", null, text), h("p", null, `${value} for each`), most.flatMap((other) => [h("p", null, `${plain(other.name)}: ${taken(other)}`), bar(other, `${text} of ${plain(other.name)}`)]));
  }
  if (one.spent === null) return h("section.limit", null, h("h3", null, text), h("p", null, `${value}; how much is spent is not known now`));
  if (!one.value) return h("section.limit", null, h("h3", null, text), bar(one, text), h("p", null, "0: nothing is allowed."));
  return h("section.limit", null, h("h3", null, text), bar(one, text), h("p", null, taken(one)),
    one.resets_at ? h("p.soft", { title: exactTime(one.resets_at * 1000) }, `Resets ${ago(one.resets_at * 1000)}. `, forecast(one, unitOf(one))) : null);
}

/** @param {any} one */
function unitOf(one) {
  return LIMITS[one.limit]?.[1] || "requests";
}

/** How much of a limit is taken. @param {any} one */
function taken(one) {
  const unit = unitOf(one);
  const word = one.limit === "concurrent" ? "under way" : one.limit.endsWith("_per_min") ? "used" : "spent";
  const left = Math.max(0, one.value - one.spent - (one.reserved || 0));
  return `${quantity(one.spent, unit)} ${word}${one.reserved ? `, ${quantity(one.reserved, unit)} reserved` : ""}, ${quantity(left, unit)} left of ${quantity(one.value, unit)}`;
}

/** @param {any} one @param {string} name */
function bar(one, name) {
  const share = one.value ? (one.spent + (one.reserved || 0)) / one.value : 1;
  return meter(share, one.value ? `${name}: ${taken(one)}` : `${name}: nothing is allowed`);
}

/** What will be spent at the end of the window if it goes on like this. @param {any} one @param {string} unit */
function forecast(one, unit) {
  const end = one.resets_at * 1000;
  const start = beginning(end, LIMITS[one.limit]?.[2] || "");
  if (start === null) return null;
  if (one.spent >= one.value) return h("span.bad", null, h("span.mark", { "aria-hidden": "true" }, "▲ "), "It is spent: requests are refused until then.");
  if (!one.spent) return null;
  const share = (Date.now() - start) / (end - start);
  if (share < EARLY) return "Too early to say how it will end.";
  const expected = one.spent / share;
  const text = `At this pace ${quantity(expected, unit)} by then`;
  return expected > one.value ? h("span.warn", null, h("span.mark", { "aria-hidden": "true" }, "▲ "), `${text}: more than the limit.`) : `${text}.`;
}

/** When a window began. @param {number} end @param {string} window */
export function beginning(end, window) {
  if (window === "day") return end - DAY_MS;
  if (window === "week") return end - 7 * DAY_MS;
  if (window !== "month") return null;
  const start = new Date(end + DAY_MS); // the first or second day of a month, in every time zone
  start.setUTCMonth(start.getUTCMonth() - 1);
  return start.getTime() - DAY_MS;
}

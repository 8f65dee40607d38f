// Keys: who may use the gateway?

import { get, getAll, send, session } from "../api.js";
import { ask, dialog } from "../dialog.js";
import { announce, h, show } from "../dom.js";
import { ago, exactTime } from "../format.js";
import { empty, fill } from "../states.js";
import { Teams, makeWords } from "../teams.js";
import { copyButton, plain } from "../text.js";

export const title = "Keys";
const DAY_S = 86_400;

/** @returns {import("../main.js").Page} */
export function open() {
  const view = new Keys();
  void view.load();
  return { node: view.node };
}

class Keys {
  constructor() {
    this.place = h("div");
    this.secret = h("div", { role: "status" });
    const create = h("button.primary", { type: "button", onclick: () => void this.create() }, "Create a key");
    this.teams = new Teams(() => this.load());
    this.node = h("div", null, h("div.bar", null, session.may("keys:write") ? create : null), this.secret, this.place);
  }

  load() {
    const readTeams = () => (session.may("teams:read") ? get("/api/v1/teams") : { teams: null });
    return fill(this.place, () => Promise.all([getAll("/api/v1/keys", "keys"), readTeams()]), ([keys, { teams }]) => h("div", null, this.table(keys), teams ? this.teams.section(teams) : null));
  }

  /** @param {any} data */
  table(data) {
    const note = data.environment_key ? h("p.soft", null, "The key of the environment ($DRAGOMAN_API_KEY) is valid, too: it is the owner's and is not listed.") : null;
    if (!data.keys.length) return h("div", null, note, empty("No keys in the store", "Create one for each person or program, so that you can tell them apart and revoke one."));
    return h("div", null, note, h("div.scroll", { tabindex: "0", role: "region", "aria-label": "Keys" }, h("table.stack", null, h("caption.unseen", null, "Keys"),
      h("thead", null, h("tr", null, ["Name", "Key", "Role", "User and team", "State", "Created", "Last used", "Expires", "Action"].map((name) => h("th", { scope: "col" }, name)))),
      h("tbody", null, data.keys.map((/** @type {any} */ key) => this.row(key))))));
  }

  /** @param {any} key */
  row(key) {
    const revoked = key.revoked_at !== null;
    const expired = key.expires_at !== null && key.expires_at * 1000 < Date.now();
    const state = revoked ? h("span.bad", null, "✕ revoked") : expired ? h("span.bad", null, "✕ expired") : h("span.ok", null, "● valid");
    const may = session.may("keys:write") && !revoked;
    return h("tr", null, h("th.text", { scope: "row" }, plain(key.name)), h("td.nowrap", null, h("code", null, `${plain(key.prefix)}…${plain(key.last4)}`)),
      h("td.scopes", null, plain(key.role), key.scopes.length ? h("div.soft", null, key.scopes.map(plain).join(", ")) : null),
      h("td.text", key.user || key.team ? { "data-label": "User and team" } : null, key.user ? plain(key.user) : null, key.team ? h("div.soft", null, `team ${plain(key.team)}`) : null),
      h("td.nowrap", null, state, key.old_secret_until && key.old_secret_until * 1000 > Date.now() ? h("div.soft", null, `old secret until ${exactTime(key.old_secret_until * 1000)}`) : null),
      time("Created", key.created_at), time("Last used", key.last_used_at), time("Expires", key.expires_at),
      h("td", null, may ? [h("button.quiet", { type: "button", onclick: () => void this.change(key) }, "Change"), h("button.quiet", { type: "button", onclick: () => void this.rotate(key) }, "Rotate"), h("button.quiet.bad", { type: "button", onclick: () => void this.revoke(key) }, "Revoke")] : null));
  }

  async create() {
    const name = h("input", { id: "name", required: true, maxlength: "100", autocomplete: "off" });
    const role = h("select", { id: "role" }, h("option", { value: "client" }, "Client: model requests, its own usage"), h("option", { value: "admin" }, "Admin token: parts of this console, no model requests"));
    const expiry = h("select", { id: "expiry" }, h("option", { value: "" }, "Never"), h("option", { value: String(DAY_S) }, "In a day"), h("option", { value: String(30 * DAY_S) }, "In 30 days"), h("option", { value: String(365 * DAY_S) }, "In a year"));
    const user = h("input", { id: "user", maxlength: "200", autocomplete: "off" });
    const team = h("input", { id: "team", maxlength: "100", autocomplete: "off" });
    const scopes = SCOPES.map((scope) => h("label.check", null, h("input", { type: "checkbox", value: scope, name: "scope" }), scope));
    const group = h("fieldset", { hidden: true }, h("legend", null, "Scopes"), scopes);
    role.addEventListener("change", () => { group.hidden = role.value !== "admin"; });
    const done = await dialog("Create a key", [h("label", { for: "name" }, "Name"), name, h("label", { for: "role" }, "For"), role, group, h("label", { for: "user" }, "User, if it is one person's"), user, h("label", { for: "team" }, "Team, if there is one"), team, h("label", { for: "expiry" }, "Expires"), expiry], "Create", async () => {
      const chosen = [...group.querySelectorAll("input:checked")].map((box) => /** @type {HTMLInputElement} */ (box).value);
      const response = await send("POST", "/api/v1/keys", {
        name: name.value, role: role.value, ...(role.value === "admin" ? { scopes: chosen } : {}),
        ...(user.value.trim() ? { user: user.value.trim() } : {}), ...(team.value.trim() ? { team: team.value.trim() } : {}),
        ...(expiry.value ? { expires_at: Math.floor(Date.now() / 1000) + Number(expiry.value) } : {}),
      });
      this.show(await response.json(), "created");
    });
    if (done) await this.load();
  }

  /** Change what is set for a key, other than its limits. @param {any} key */
  async change(key) {
    const isToken = key.role === "admin";
    const inputs = Object.entries(isToken ? { team: SETTINGS.team } : SETTINGS).map(([name, text]) => ({ text, node: h("input", { id: name, name, maxlength: "2000", autocomplete: "off", value: formatSetting(key[name]) }) }));
    const words = makeWords(isToken ? {} : { models: key.models, providers: key.providers });
    const capture = h("select", { id: "capture" }, Object.entries(CAPTURES).map(([value, text]) => h("option", { value, selected: value === key.capture }, text)));
    const strict = h("input", { type: "checkbox", checked: key.strict });
    const done = await dialog(`Change ${plain(key.name)}`, [
      ...inputs.flatMap(({ text, node }) => [h("label", { for: node.id }, text), node]), ...words.nodes,
      ...(isToken ? [] : [h("label", { for: "capture" }, "Captures of its requests"), capture, h("label.check", null, strict, "Refuse requests that would lose something in translation"), h("p.soft", null, "Its limits are on the page Budgets.")]),
    ], "Save", async () => {
      const changed = inputs.filter(({ node }) => node.value.trim() !== formatSetting(key[node.name]));
      await send("PATCH", `/api/v1/keys/${encodeURIComponent(key.id)}`, {
        ...Object.fromEntries(changed.map(({ node }) => [node.name, readSetting(node)])), ...words.read(),
        ...(isToken ? {} : { capture: capture.value, strict: strict.checked }),
      }, { headers: { "if-match": `"${key.version}"` } });
      announce(`The key ${plain(key.name)} is changed.`);
    });
    if (done) await this.load();
  }

  /** @param {any} key */
  async rotate(key) {
    const grace = h("select", { id: "grace" }, h("option", { value: "0" }, "At once"), h("option", { value: "3600" }, "After an hour"), h("option", { value: String(DAY_S), selected: true }, "After a day"), h("option", { value: String(7 * DAY_S) }, "After a week"));
    const done = await dialog(`Rotate ${plain(key.name)}`, [h("p", null, "The key gets a new secret, shown once. Its id and its history stay."), h("label", { for: "grace" }, "The old secret ends"), grace], "Rotate", async () => {
      const response = await send("POST", `/api/v1/keys/${encodeURIComponent(key.id)}/rotate`, { grace_s: Number(grace.value) }, { headers: { "if-match": `"${key.version}"` } });
      const made = await response.json();
      key.version = made.version; // so that its row can be used before the table is read again
      this.show(made, "rotated");
    });
    if (done) await this.load();
  }

  /** @param {any} key */
  async revoke(key) {
    if (!(await ask(`Revoke ${plain(key.name)}?`, "Its clients and its sessions end within a second. This cannot be undone.", "Revoke"))) return;
    try {
      await send("DELETE", `/api/v1/keys/${encodeURIComponent(key.id)}`, undefined, { headers: { "if-match": `"${key.version}"` } });
      announce("The key is revoked.");
    } catch (error) {
      show(this.secret, h("p.notice.bad", null, plain(/** @type {Error} */ (error).message)));
    }
    await this.load();
  }

  /** @param {any} made @param {string} how */
  show(made, how) {
    const secret = made.secret;
    show(this.secret, h("section.notice.good", null, h("h2", null, `The key ${plain(made.name)} is ${how}`), h("p", null, "This is shown only now. Copy it to where it is used."),
      h("div.bar", null, h("code", null, secret), copyButton(() => secret)), h("button.quiet", { type: "button", onclick: () => this.secret.replaceChildren() }, "I have it: hide it")));
  }
}

/** @type {Record<string, string>} what is typed for a key -> its label */
const SETTINGS = {
  user: "User, if it is one person's", team: "Team, if it is not the user's", default_model: "Model where a request names none",
  max_output_tokens: "Most tokens of output; empty: no bound", metadata: "Your own notes: name=value, separated by commas",
};
const CAPTURES = { all: "As the configuration says", errors: "At most those that fail", off: "None" };

/** @param {any} value */
function formatSetting(value) {
  return value !== null && typeof value === "object" ? Object.entries(value).map((pair) => pair.join("=")).join(", ") : String(value ?? "");
}

/** What an input says, as the admin API takes it. @param {HTMLInputElement} input */
function readSetting(input) {
  const text = input.value.trim();
  if (!text) return null;
  if (input.name === "metadata") return Object.fromEntries(text.split(",").map((pair) => splitPair(pair.trim())));
  if (input.name !== "max_output_tokens") return text;
  if (!/^\d+$/.test(text)) throw new Error(`Most tokens of output: "${text}" is not a whole number.`);
  return Number(text);
}

/** @param {string} pair */
function splitPair(pair) {
  const at = pair.indexOf("=");
  if (at < 1) throw new Error(`Your own notes: write name=value, not "${pair}".`);
  return [pair.slice(0, at).trim(), pair.slice(at + 1).trim()];
}

const SCOPES = ["requests:read", "requests:end", "usage:read", "captures:read", "models:read", "accounts:read", "accounts:write", "keys:read", "keys:write", "teams:read", "teams:write", "limits:read", "limits:write", "config:read", "config:write", "doctor:run", "audit:read"];

/** @param {string} label @param {number | null} seconds */
function time(label, seconds) {
  return seconds === null ? h("td.soft", { "data-label": label }, "never") : h("td.nowrap", { "data-label": label, title: exactTime(seconds * 1000) }, ago(seconds * 1000));
}

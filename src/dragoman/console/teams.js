// Teams, on the page Keys: who belongs together, and what they may use.

import { send, session } from "./api.js";
import { dialog } from "./dialog.js";
import { announce, h } from "./dom.js";
import { empty } from "./states.js";
import { plain } from "./text.js";

export class Teams {
  /** @param {() => Promise<void>} load show the page again */
  constructor(load) {
    this.load = load;
  }

  /** @param {any[]} teams */
  section(teams) {
    const create = h("button", { type: "button", onclick: () => void this.create() }, "Create a team");
    return h("section", null, h("h2", null, "Teams"), session.may("teams:write") ? h("div.bar", null, create) : null, this.table(teams));
  }

  /** @param {any[]} teams */
  table(teams) {
    if (!teams.length) return empty("No teams", "A team has its own limits, and those for each of its members. Create one, and give it members or keys.");
    return h("div.scroll", { tabindex: "0", role: "region", "aria-label": "Teams" }, h("table.stack", null, h("caption.unseen", null, "Teams"),
      h("thead", null, h("tr", null, ["Team", "Members", "May use", "Keys", "Set in", "Action"].map((name) => h("th", { scope: "col" }, name)))),
      h("tbody", null, teams.map((team) => this.row(team)))));
  }

  /** @param {any} team */
  row(team) {
    const may = session.may("teams:write") && team.origin === "store";
    return h("tr", null, h("th.text", { scope: "row" }, plain(team.name)),
      h("td.text", { "data-label": "Members" }, team.members.map(plain).join(", ") || "none"),
      h("td.text", { "data-label": "May use" }, team.models.map(plain).join(", ") || "every model", team.providers.length ? h("div.soft", null, `of ${team.providers.map(plain).join(", ")}`) : null),
      h("td.number", { "data-label": "Keys" }, String(team.keys)),
      h("td.nowrap", { "data-label": "Set in" }, team.origin === "file" ? "the configuration file" : "the store"),
      h("td.nowrap", null, may ? [h("button.quiet", { type: "button", onclick: () => void this.change(team) }, "Change"), h("button.quiet.bad", { type: "button", onclick: () => void this.remove(team) }, "Remove")] : null));
  }

  async create() {
    const name = h("input", { id: "name", required: true, maxlength: "100", autocomplete: "off" });
    const words = makeWords({ members: [], models: [], providers: [] });
    const done = await dialog("Create a team", [h("label", { for: "name" }, "Name"), name, ...words.nodes], "Create", async () => {
      await send("POST", "/api/v1/teams", { name: name.value, ...words.read() });
      announce(`The team ${plain(name.value)} is created.`);
    });
    if (done) await this.load();
  }

  /** @param {any} team */
  async change(team) {
    const words = makeWords(team);
    const done = await dialog(`Change the team ${plain(team.name)}`, words.nodes, "Save", async () => {
      await send("PATCH", path(team), words.read(), { headers: { "if-match": `"${team.version}"` } });
      announce(`The team ${plain(team.name)} is changed.`);
    });
    if (done) await this.load();
  }

  /** @param {any} team */
  async remove(team) {
    const done = await dialog(`Remove the team ${plain(team.name)}?`, [h("p", null, "Its limits are removed with it. What it spent stays in Usage. A team that still has keys cannot be removed.")], "Remove", async () => {
      await send("DELETE", path(team), undefined, { headers: { "if-match": `"${team.version}"` } });
      announce(`The team ${plain(team.name)} is removed.`);
    }, "danger");
    if (done) await this.load();
  }
}

/** @type {Record<string, string>} */
const WORDS = {
  members: "Members, separated by commas",
  models: "Models that may be used, separated by commas; empty: all",
  providers: "Providers that may be used, separated by commas; empty: all",
};

/** Inputs for the lists of words that are there, and what they say. @param {Record<string, any>} values */
export function makeWords(values) {
  const inputs = Object.keys(WORDS).filter((name) => name in values).map((name) => h("input.wide", { id: name, name, maxlength: "2000", autocomplete: "off", value: values[name].join(", ") }));
  return {
    nodes: inputs.flatMap((input) => [h("label", { for: input.id }, WORDS[input.name]), input]),
    read: () => Object.fromEntries(inputs.map((input) => [input.name, splitWords(input.value)])),
  };
}

/** @param {string} text */
function splitWords(text) {
  return text.split(",").map((word) => word.trim()).filter(Boolean);
}

/** @param {any} team */
function path(team) {
  return `/api/v1/teams/${encodeURIComponent(team.name)}`;
}

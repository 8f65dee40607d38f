// Settings: what is in effect, and who set it? And the file itself: checked, compared, then written.

import { keepInAddress } from "../address.js";
import { get, send, session } from "../api.js";
import { announce, h, show } from "../dom.js";
import { empty, failed, fill } from "../states.js";
import { lines, plain, quote } from "../text.js";

export const title = "Settings";
/** @type {{text: string, etag: string} | null} what was typed and is not written: it outlasts the end of a session */
let draft = null;

/** @param {{query: URLSearchParams}} address @returns {import("../main.js").Page} */
export function open({ query }) {
  const place = h("div");
  const input = h("input.grow", { type: "search", id: "find", placeholder: "retry, providers.kiro, capture …", autocomplete: "off" });
  input.value = query.get("q") || "";
  const only = h("input", { type: "checkbox" });
  only.checked = query.get("set") === "1";
  /** @type {any} */
  let data = null;
  const keep = () => keepInAddress({ q: input.value, set: only.checked ? "1" : "", edit: editor.node.open ? "1" : "" });
  const draw = () => {
    keep();
    if (data) place.replaceChildren(report(data, input.value, only.checked));
  };
  const load = () => fill(place, () => get("/api/v1/config"), (loaded) => { data = loaded; return report(data, input.value, only.checked); });
  const editor = new FileEditor(load);
  input.addEventListener("input", draw);
  only.addEventListener("change", draw);
  void load();
  editor.node.addEventListener("toggle", keep);
  editor.node.open = query.get("edit") === "1";
  return {
    node: h("div", null, editor.node, h("h2", null, "Values in effect"), h("div.bar", { role: "search" }, h("label.unseen", { for: "find" }, "Find a setting"), input, h("label.check", null, only, "Only what differs from the defaults")), place),
    keys: { "/": () => input.focus() },
    unsaved: () => draft !== null,
    discard: () => { draft = null; },
  };
}

/** @param {any} data @param {string} search @param {boolean} onlySet */
function report(data, search, onlySet) {
  const found = data.settings.filter((/** @type {any} */ one) => one.key.toLowerCase().includes(search.toLowerCase()) && (!onlySet || one.origin !== "default"));
  return h("div", null, h("p", null, "File: ", h("code", null, plain(data.source)), ". Secrets are masked."),
    data.warnings.map((/** @type {string} */ warning) => h("p.notice", null, quote(warning, 1000))),
    found.length ? table(found) : empty("No setting matches", "Remove the filter to see all."));
}

/** @param {any[]} settings */
function table(settings) {
  return h("div.scroll", { tabindex: "0", role: "region", "aria-label": "Settings" }, h("table.stack", null, h("caption.unseen", null, "Settings in effect"),
    h("thead", null, h("tr", null, ["Setting", "Value", "Set by"].map((name) => h("th", { scope: "col" }, name)))),
    h("tbody", null, settings.map((one) => h("tr", null, h("th.nowrap", { scope: "row" }, h("code", null, plain(one.key))),
      h("td.text.mono", null, quote(one.value === null ? "not set" : Array.isArray(one.value) ? JSON.stringify(one.value) : String(one.value), 500)),
      h("td.text", null, one.origin === "default" ? h("span.soft", null, "default") : plain(one.origin)))))));
}

/** The file's own text. Nothing is written before it was checked and its difference shown. */
class FileEditor {
  /** @param {() => void} written */
  constructor(written) {
    this.written = written;
    this.etag = "";
    this.place = h("div");
    this.result = h("div", { role: "status" });
    this.node = h("details.card", { ontoggle: () => { if (this.node.open && !this.place.firstChild) void this.load(); } }, h("summary", null, "Edit the file"), this.place, this.result);
  }

  load() {
    show(this.result);
    return fill(this.place, async () => {
      const response = await send("GET", "/api/v1/config/file");
      this.etag = draft?.etag || response.headers.get("etag") || "";
      return response.json();
    }, (file) => this.draw(file));
  }

  /** @param {any} file */
  draw(file) {
    const may = session.may("config:write") && file.writable;
    const area = h("textarea", { id: "file", rows: "16", spellcheck: "false", readonly: !may, "aria-describedby": "file-note" });
    area.value = draft?.text ?? file.text;
    const write = h("button.primary", { type: "button", disabled: true, onclick: () => void this.write(area.value) }, "Write and reload");
    area.addEventListener("input", () => {
      write.disabled = true;
      draft = area.value === file.text ? null : { text: area.value, etag: this.etag };
    });
    const check = h("button", { type: "button", onclick: async () => { write.disabled = !(await this.check(area.value)); } }, "Check and compare");
    return h("div", null, h("label", { for: "file" }, plain(file.path)), h("p.soft", { id: "file-note" }, !may ? "This is read-only: the gateway may not write the file, or this key may not."
      : file.exists ? "A secret is shown as <hidden N>: leave it, and it stays as it is. What names programs, files or accounts, and where stored credentials are sent, is changed only on the gateway's machine." : "There is no file yet: writing makes it."), area,
      draft ? h("p.notice", null, "This is what you typed before. It is not written yet.") : null,
      may ? h("div.bar", null, check, write, h("button.quiet", { type: "button", onclick: () => { draft = null; void this.load(); } }, "Start again")) : null);
  }

  /** @param {string} text @returns {Promise<boolean>} */
  async check(text) {
    try {
      const found = await (await send("POST", "/api/v1/config/check", { text })).json();
      const list = [...found.problems.map((/** @type {any} */ one) => h("p.notice.bad", null, `Line ${one.line ?? "?"}, ${plain(one.key)}: `, quote(one.message, 1000))),
        ...found.warnings.map((/** @type {string} */ one) => h("p.notice", null, quote(one, 1000)))];
      show(this.result, list, found.diff ? difference(found.diff) : h("p", null, "Nothing is changed."));
      announce(found.ok ? "The text is valid." : `${found.problems.length} problems`);
      return found.ok && Boolean(found.diff);
    } catch (error) {
      show(this.result, failed(error));
      return false;
    }
  }

  /** @param {string} text */
  async write(text) {
    try {
      const made = await (await send("PUT", "/api/v1/config/file", { text }, { headers: { "if-match": this.etag } })).json();
      draft = null;
      await this.load();
      show(this.result, h("p.notice.good", null, "Written and in effect.", made.backup ? ` The old file is ${plain(made.backup)}.` : ""));
      announce("Written and in effect.");
      this.written();
    } catch (error) {
      show(this.result, failed(error));
    }
  }
}

/** @param {string} text a unified difference */
function difference(text) {
  return h("div.diff", { tabindex: "0", role: "region", "aria-label": "Difference" }, text.split("\n").map((line) => h(line.startsWith("+") ? "div.add" : line.startsWith("-") ? "div.del" : "div", null, lines(line))));
}

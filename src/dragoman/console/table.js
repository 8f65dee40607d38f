// A real table with headers whose rows are updated in place and can be walked with j and k.

import { h, setText } from "./dom.js";

/**
 * @typedef {object} Column
 * @property {string} title
 * @property {(row: any) => any} cell text or a node; text is updated in place
 * @property {string} [kind] "number", "text", "wide" or "nowrap"
 * @property {(row: any) => string} [hint] shown on hover
 */

export class Table {
  /**
   * @param {string} caption
   * @param {Column[]} columns
   * @param {{open?: (row: any) => void, key?: (row: any) => string}} [options]
   */
  constructor(caption, columns, options = {}) {
    this.columns = columns;
    this.options = options;
    /** @type {Map<string, {row: any, line: HTMLTableRowElement, cells: HTMLTableCellElement[]}>} */
    this.lines = new Map();
    this.body = h("tbody");
    this.node = h("div.scroll", { tabindex: "0", role: "region", "aria-label": caption },
      h("table", null,
        h("caption.unseen", null, caption),
        h("thead", null, h("tr", null, columns.map((column) =>
          h(`th.${column.kind || "text"}`, { scope: "col" }, column.title)))),
        this.body));
  }

  /** The row that has the focus, or a button in it. @returns {HTMLTableRowElement | null} */
  get focused() {
    const line = document.activeElement?.closest("tr") || null;
    return line && this.body.contains(line) ? line : null;
  }

  /** @param {any[]} rows in order */
  set(rows) {
    const current = new Set();
    const focused = this.focused;
    const place = focused ? [...this.body.children].indexOf(focused) : -1;
    /** @type {HTMLTableRowElement | null} */
    let after = null;
    for (const [index, row] of rows.entries()) {
      const key = this.options.key ? this.options.key(row) : String(index);
      current.add(key);
      const line = this.update(key, row);
      /** @type {ChildNode | null} */
      const next = after ? after.nextSibling : this.body.firstChild;
      // A row that is moved loses the focus, so the others are moved around the one that has it.
      if (next !== line && line !== focused) this.body.insertBefore(line, next);
      after = line;
    }
    for (const [key, { line }] of this.lines) {
      if (!current.has(key)) {
        line.remove();
        this.lines.delete(key);
      }
    }
    if (focused && !this.focused) this.#refocus(focused, place);
  }

  /** The row with the focus is gone, or the button in it. @param {HTMLTableRowElement} line @param {number} place */
  #refocus(line, place) {
    const next = line.isConnected ? line : this.body.children[Math.min(place, this.body.children.length - 1)];
    (next instanceof HTMLElement ? next : this.node).focus({ preventScroll: true });
  }

  /** @param {string} key @param {any} row */
  update(key, row) {
    let known = this.lines.get(key);
    if (!known) {
      const cells = this.columns.map((column) => h(`td.${column.kind || "text"}`));
      const line = h("tr", { "data-key": key }, cells);
      if (this.options.open) {
        line.tabIndex = 0;
        line.addEventListener("click", (/** @type {MouseEvent} */ event) => {
          if (!(event.target instanceof Element) || !event.target.closest("a, button")) this.open(key);
        });
        line.addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => {
          if (event.key === "Enter" && event.target === line) this.open(key);
        });
      }
      known = { row, line, cells };
      this.lines.set(key, known);
    }
    known.row = row;
    for (const [index, column] of this.columns.entries()) {
      const cell = known.cells[index];
      const made = column.cell(row);
      if (made instanceof Node) {
        // The same text is left alone: a button in it keeps the focus.
        if (!cell.firstChild || cell.textContent !== made.textContent) cell.replaceChildren(made);
      } else setText(cell, String(made ?? ""));
      if (column.hint) cell.title = column.hint(row);
    }
    return known.line;
  }

  /** @param {string} key */
  open(key) {
    const known = this.lines.get(key);
    if (known && this.options.open) this.options.open(known.row);
  }

  /** Move the focus by a number of rows. @param {number} step */
  move(step) {
    const lines = [...this.body.children];
    const now = lines.indexOf(/** @type {Element} */ (document.activeElement?.closest("tr")));
    const next = lines[Math.max(0, Math.min(lines.length - 1, now < 0 ? 0 : now + step))];
    if (next instanceof HTMLElement) next.focus();
  }

  /** The keys of a page with this table. */
  get keys() {
    return { j: () => this.move(1), k: () => this.move(-1) };
  }
}

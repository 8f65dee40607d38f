// Dialogs that return the focus to where it was.

import { h } from "./dom.js";
import { plain } from "./text.js";

/**
 * Ask for a confirmation.
 * @param {string} question
 * @param {string} detail
 * @param {string} yes
 * @returns {Promise<boolean>}
 */
export function ask(question, detail, yes) {
  return dialog(question, [h("p", null, detail)], yes, async () => {}, "danger");
}

/**
 * Show a form in a dialog; it stays open, with the error, until `act` succeeds or it is cancelled.
 * @param {string} title
 * @param {any[]} content
 * @param {string} yes
 * @param {() => Promise<void>} act
 * @param {string} [kind] of the button
 * @returns {Promise<boolean>}
 */
export function dialog(title, content, yes, act, kind = "primary") {
  return new Promise((resolve) => {
    let done = false;
    const problem = h("p.problem", { role: "alert" });
    const button = h(`button.${kind}`, { type: "submit" }, yes);
    const cancel = h("button", { type: "button", onclick: () => box.close() }, "Cancel");
    const form = h("form", {
      onsubmit: async (/** @type {Event} */ event) => {
        event.preventDefault();
        button.disabled = true;
        try {
          await act();
          done = true;
          box.close();
        } catch (error) {
          problem.textContent = plain(/** @type {Error} */ (error).message);
        }
        button.disabled = false;
      },
    }, content, problem, h("div.bar", null, button, cancel));
    const box = h("dialog", { "aria-labelledby": "dialog-title" }, h("h2", { id: "dialog-title" }, title), form);
    const before = document.activeElement;
    box.addEventListener("close", () => {
      box.remove();
      if (before instanceof HTMLElement && before.isConnected) before.focus();
      resolve(done);
    });
    document.body.append(box);
    box.showModal();
    if (kind === "danger") cancel.focus();
  });
}

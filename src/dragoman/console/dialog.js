// Dialogs that return the focus to where it was.

import { h } from "./dom.js";

/**
 * Ask for a confirmation; focus returns to where it was.
 * @param {string} question
 * @param {string} detail
 * @param {string} yes
 * @returns {Promise<boolean>}
 */
export function ask(question, detail, yes) {
  return new Promise((resolve) => {
    const dialog = h("dialog", { "aria-labelledby": "question" }, h("h2", { id: "question" }, question), h("p", null, detail),
      h("form.bar", { method: "dialog" }, h("button.danger", { value: "yes" }, yes), h("button", { value: "no", autofocus: true }, "Cancel")));
    const before = document.activeElement;
    dialog.addEventListener("close", () => {
      dialog.remove();
      if (before instanceof HTMLElement) before.focus();
      resolve(dialog.returnValue === "yes");
    });
    document.body.append(dialog);
    dialog.showModal();
  });
}

// Build elements without ever parsing markup: every string becomes a text node.

/** @typedef {Node | string | number | null | undefined | false} Child */

const SVG = "http://www.w3.org/2000/svg";

/**
 * Make an element: h("button.primary", {onclick: save, disabled: true}, "Save").
 * @param {string} tag a name, with classes after dots
 * @param {Record<string, any> | null} [props] attributes, and listeners as on…
 * @param {...(Child | Child[])} children
 * @returns {any}
 */
export function h(tag, props, ...children) {
  const [name, ...classes] = tag.split(".");
  return fill(document.createElement(name), classes, props, children);
}

/**
 * The same for a drawing.
 * @param {string} tag
 * @param {Record<string, any> | null} [props]
 * @param {...(Child | Child[])} children
 * @returns {SVGElement}
 */
export function s(tag, props, ...children) {
  const [name, ...classes] = tag.split(".");
  return fill(document.createElementNS(SVG, name), classes, props, children);
}

/**
 * @template {Element} E
 * @param {E} element
 * @param {string[]} classes
 * @param {Record<string, any> | null | undefined} props
 * @param {(Child | Child[])[]} children
 * @returns {E}
 */
function fill(element, classes, props, children) {
  if (classes.length) element.classList.add(...classes);
  for (const [key, value] of Object.entries(props || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else element.setAttribute(key, value === true ? "" : String(value));
  }
  put(element, ...children);
  return element;
}

/**
 * Append children to an element.
 * @param {Node} parent
 * @param {...(Child | Child[])} children
 */
export function put(parent, ...children) {
  for (const child of children.flat()) {
    if (child === null || child === undefined || child === false) continue;
    parent.appendChild(child instanceof Node ? child : document.createTextNode(String(child)));
  }
}

/**
 * Replace all children of an element.
 * @param {Element} parent
 * @param {...(Child | Child[])} children
 */
export function show(parent, ...children) {
  parent.replaceChildren();
  put(parent, ...children);
}

/**
 * Set the text of an element only if it changes, so that nothing is drawn for nothing.
 * @param {Node} element
 * @param {string} text
 */
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/**
 * Tell people who listen to the page: counts and errors, never tokens.
 * @param {string} text
 */
export function announce(text) {
  const region = document.getElementById("announce");
  if (region) setText(region, text);
}

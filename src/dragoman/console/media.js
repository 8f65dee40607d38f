// Images and other media inside JSON: by kind and size, and images as thumbnails on request, never from an outside address.

import { h } from "./dom.js";
import { bytes } from "./format.js";

const DATA_ADDRESS = /^data:([\w.+-]+\/[\w.+-]+);base64,/;
const BASE64 = /^[A-Za-z0-9+/_-]+={0,2}$/;
/** The beginnings of images that are shown; SVG is not, because it is a document. @type {Record<string, string>} */
const BEGINNINGS = { iVBOR: "image/png", "/9j/": "image/jpeg", R0lG: "image/gif", UklG: "image/webp" };
const SHORTEST = 100;
const SHOWN = 24;

/** @typedef {{type: string, data: string, label: string}} Media */

/** The media that a string of a request holds; null if it is ordinary text. @param {unknown} value @param {any} parent the object around it @returns {Media | null} */
export function findMedia(value, parent) {
  if (typeof value !== "string" || value.length < SHORTEST) return null;
  const address = DATA_ADDRESS.exec(value);
  const type = address ? address[1] : typeOf(parent);
  const data = address ? value.slice(address[0].length) : value;
  if (!type || !BASE64.test(data)) return null;
  return { type, data, label: `${type}, ${bytes(Math.floor((data.length * 3) / 4))}: ${data.slice(0, SHOWN)}…` };
}

/** What the protocols write beside the data: media_type, mimeType, or a format. @param {any} parent @returns {string} */
function typeOf(parent) {
  const named = parent?.media_type ?? parent?.mimeType ?? parent?.mime_type;
  if (typeof named === "string") return named;
  return typeof parent?.format === "string" ? parent.format : parent && "bytes" in parent ? "image" : "";
}

/** A button that shows the image. @param {Media} media */
export function thumbnail(media) {
  const type = drawnType(media);
  if (!type) return null;
  const button = h("button.quiet", { type: "button", onclick: () => button.replaceWith(draw(media, type)) }, "Show the image");
  return button;
}

/** The type of an image by its first bytes, whatever it claims to be. @param {Media} media */
function drawnType(media) {
  return Object.entries(BEGINNINGS).find(([beginning]) => media.data.startsWith(beginning))?.[1] ?? "";
}

/** @param {Media} media @param {string} type */
function draw(media, type) {
  const text = atob(media.data.replaceAll("-", "+").replaceAll("_", "/"));
  const address = URL.createObjectURL(new Blob([Uint8Array.from(text, (sign) => sign.charCodeAt(0))], { type }));
  const image = h("img.thumbnail", { src: address, alt: `Image of the request, ${type}` });
  image.addEventListener("load", () => URL.revokeObjectURL(address));
  image.addEventListener("error", () => image.replaceWith("This image cannot be shown."));
  return image;
}

// Charts of our own: stacked bars over time, and meters. A table with the same numbers stands beside every chart.

import { h, s } from "./dom.js";
import { ago, number } from "./format.js";
import { plain } from "./text.js";

const NARROWEST = 240;
const HEIGHT = 180;
const LEFT = 76;
const BOTTOM = 20;
const LABEL = 70;
const COLOURS = ["fill", "fill2", "fill3"];

/**
 * @param {string} title
 * @param {{label: string, values: number[]}[]} bars each value is one part of the bar
 * @param {string[]} parts the names of the parts
 * @param {(value: number) => string} format
 */
export function barChart(title, bars, parts, format) {
  const place = h("div");
  /** Drawn for the width that it has, so that its text keeps its size. */
  const redraw = () => {
    const width = Math.max(NARROWEST, place.clientWidth || (document.getElementById("main")?.clientWidth || 900) - 90);
    if (place.firstElementChild?.getAttribute("data-width") !== String(width)) place.replaceChildren(drawBars(title, bars, parts, format, width));
  };
  redraw();
  new ResizeObserver(redraw).observe(place);
  return h("figure.card", null, h("figcaption", null, h("strong", null, title)), place,
    parts.length > 1 ? h("ul.legend", null, parts.map((part, index) => h("li", null,
      s("svg", { viewBox: "0 0 10 10", "aria-hidden": "true" }, s(`rect.${COLOURS[index % COLOURS.length]}`, { width: 10, height: 10 })), part))) : null);
}

/**
 * @param {string} title @param {{label: string, values: number[]}[]} bars @param {string[]} parts
 * @param {(value: number) => string} format @param {number} width
 */
function drawBars(title, bars, parts, format, width) {
  const most = Math.max(1e-12, ...bars.map((bar) => bar.values.reduce((sum, value) => sum + value, 0)));
  const room = HEIGHT - BOTTOM - 8;
  const step = (width - LEFT) / Math.max(1, bars.length);
  const drawing = s("svg.chart", { viewBox: `0 0 ${width} ${HEIGHT}`, "data-width": width, role: "img", "aria-label": `${title}; the table below has the numbers` });
  for (const share of [0, 0.5, 1]) {
    const y = 8 + room * (1 - share);
    drawing.append(s("line.grid", { x1: LEFT, x2: width, y1: y, y2: y }), s("text", { x: LEFT - 6, y: y + 4, "text-anchor": "end" }, format(most * share)));
  }
  for (const [index, bar] of bars.entries()) {
    let y = 8 + room;
    const group = s("g", null, s("title", null, `${bar.label}: ${bar.values.map((value, part) => `${format(value)} ${parts[part]}`).join(", ")}`));
    for (const [part, value] of bar.values.entries()) {
      const height = (room * value) / most;
      y -= height;
      if (height > 0) group.append(s(`rect.${COLOURS[part % COLOURS.length]}`, { x: LEFT + index * step + 1, y, width: Math.max(1, step - 2), height }));
    }
    drawing.append(group);
  }
  const every = Math.max(1, Math.ceil((bars.length * LABEL) / (width - LEFT)));
  for (let index = 0; index < bars.length; index += every) {
    const x = LEFT + (index + 0.5) * step;
    const isLast = x + LABEL / 2 > width;
    drawing.append(s("text", { x: isLast ? width : x, y: HEIGHT - 4, "text-anchor": isLast ? "end" : "middle" }, bars[index].label));
  }
  return drawing;
}

/** @param {number} share 0 to 1 @param {string} label */
export function meter(share, label) {
  const width = Math.max(0, Math.min(1, share)) * 100;
  const colour = share >= 0.95 ? "bad-fill" : share >= 0.8 ? "warn-fill" : "fill";
  return s("svg.meter", { viewBox: "0 0 100 4", preserveAspectRatio: "none", role: "img", "aria-label": label },
    s("rect.back", { width: 100, height: 4 }), s(`rect.${colour}`, { width, height: 4 }));
}

/** What is used of a plan, as of the last response. @param {any} limits */
export function planWindows(limits) {
  return [limits?.plan ? h("p.soft", null, `Plan: ${plain(limits.plan)}`) : null,
    ...Object.entries(limits?.windows || {}).map(([name, window]) => h("div", null, h("p", null, `${plain(name)}: `, window.unlimited ? "unlimited" : `${number(window.used_percent)} % used`, window.resets_at ? `, resets ${ago(window.resets_at * 1000)}` : ""),
      window.unlimited || window.used_percent === null ? null : meter(window.used_percent / 100, `${plain(name)}: ${number(window.used_percent)} % used`)))];
}

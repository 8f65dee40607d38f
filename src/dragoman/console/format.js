// Numbers, times and money, with their units.

const count = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const exact = new Intl.DateTimeFormat("en-CA", { dateStyle: "short", timeStyle: "medium", hour12: false });
export const ZONE = Intl.DateTimeFormat().resolvedOptions().timeZone;

/** @param {number | null | undefined} value */
export function number(value) {
  return value === null || value === undefined ? "–" : count.format(value);
}

/** @param {number | null | undefined} tokens */
export function tokens(tokens) {
  if (tokens === null || tokens === undefined) return "–";
  if (tokens < 10_000) return count.format(tokens);
  return tokens < 1_000_000 ? `${fixed(tokens / 1000, 1)} k` : `${fixed(tokens / 1_000_000, 2)} M`;
}

/** A number with a maximum of decimals: 200, not 200.0. @param {number} value @param {number} decimals */
function fixed(value, decimals) {
  return String(Number(value.toFixed(decimals)));
}

/** @param {number | null | undefined} milliseconds */
export function duration(milliseconds) {
  if (milliseconds === null || milliseconds === undefined) return "–";
  if (milliseconds < 1) return milliseconds ? `${milliseconds.toFixed(1)} ms` : "0 ms";
  if (milliseconds < 1000) return `${Math.round(milliseconds)} ms`;
  const seconds = milliseconds / 1000;
  if (seconds < 100) return `${seconds.toFixed(seconds < 10 ? 2 : 1)} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return `${minutes} min ${Math.floor(seconds % 60)} s`;
  const hours = Math.floor(minutes / 60);
  return hours < 48 ? `${hours} h ${minutes % 60} min` : `${Math.floor(hours / 24)} d ${hours % 24} h`;
}

/** @param {number | null | undefined} usd @returns {string} */
export function money(usd) {
  if (usd === null || usd === undefined) return "no price";
  if (usd === 0) return "$0";
  if (usd < 0) return `−${money(-usd)}`;
  return usd < 0.01 ? `$${usd.toFixed(5)}` : usd >= 1 && usd < 100 ? `$${usd.toFixed(2)}` : usd < 1 ? `$${usd.toFixed(3)}` : `$${count.format(usd)}`;
}

/** @param {number} bytes */
export function bytes(bytes) {
  if (bytes < 1000) return `${bytes} B`;
  return bytes < 1_000_000 ? `${(bytes / 1000).toFixed(1)} kB` : `${(bytes / 1_000_000).toFixed(1)} MB`;
}

/** @param {number} part @param {number} whole */
export function percent(part, whole) {
  return whole ? `${Math.round((100 * part) / whole)} %` : "–";
}

/** @param {number | string | Date} when milliseconds since 1970, or ISO 8601 */
export function exactTime(when) {
  return `${exact.format(new Date(when))} (${ZONE})`;
}

/** @param {number | string | Date} when */
export function ago(when) {
  const passed = Date.now() - new Date(when).getTime();
  return passed >= 0 ? `${coarse(passed)} ago` : `in ${coarse(-passed)}`;
}

/** @param {number} milliseconds */
function coarse(milliseconds) {
  const seconds = Math.max(1, Math.round(milliseconds / 1000));
  return seconds < 90 ? `${seconds} s` : duration(seconds * 1000).replace(/ min \d+ s$/, " min");
}

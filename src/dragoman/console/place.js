// Where a person was on a page: how far it was scrolled, and the row with the focus. It is kept with the address in the
// browser's history, so that Back and a reload lead there.

const PATIENCE_MS = 10_000; // for what the page loads

/** @typedef {{scroll?: number, row?: string}} Place */

/** @returns {Place} */
export function findPlace() {
  const row = document.activeElement?.closest("tr[data-key]");
  return { scroll: scrollY, row: row instanceof HTMLElement ? row.dataset.key : undefined };
}

/**
 * Lead back to a place as soon as the page is long enough, unless its reader does something first. Returns how to give up.
 * @param {Element} main @param {Place} place
 */
export function restorePlace(main, { scroll = 0, row = "" }) {
  const control = new AbortController();
  const { signal } = control;
  let isScrolled = false;
  const observer = new ResizeObserver(() => {
    const line = row ? main.querySelector(`tr[data-key="${CSS.escape(row)}"]`) : null;
    if (line instanceof HTMLElement) line.focus({ preventScroll: true });
    if (!isScrolled && document.documentElement.scrollHeight >= scroll + innerHeight) {
      isScrolled = true;
      scrollTo(0, scroll);
    }
    if (isScrolled && (line || !row)) control.abort();
  });
  signal.addEventListener("abort", () => observer.disconnect());
  for (const name of ["wheel", "touchstart", "pointerdown", "keydown"]) addEventListener(name, () => control.abort(), { signal, passive: true });
  setTimeout(() => control.abort(), PATIENCE_MS);
  if (scroll || row) observer.observe(main);
  return () => control.abort();
}

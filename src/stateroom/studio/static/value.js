/** A value as text, of which a long one is folded. */
import { html, useMemo, useSignal } from "./html.js";
import { number, visible } from "./text.js";

const MOST = 4000; // characters that are shown at first

/** @param {unknown} value */
export const textOf = (value) => (typeof value === "string" ? value : JSON.stringify(value, null, 2));

/** @param {{value: unknown}} properties */
export function Value({ value }) {
  const whole = useSignal(false);
  const text = useMemo(() => textOf(value), [value]);
  const isCut = !whole.value && text.length > MOST;
  return html`
    <pre>${visible(isCut ? text.slice(0, MOST) : text)}</pre>
    ${
      isCut &&
      html`<button type="button" class="quiet" onClick=${() => (whole.value = true)}>
        Show all ${number(text.length)} characters
      </button>`
    }
  `;
}

/**
 * A number as people read it; its title has all digits.
 * @param {{value: number | null | undefined, error?: number}} properties
 */
export function Exact({ value, error }) {
  if (value === null || value === undefined) return html`<span class="muted">–</span>`;
  const near = Number(value); // of a row that others wrote, it may be anything
  const shown = Math.abs(near) < 100 ? near : Math.round(near * 10) / 10;
  return html`
    <span title=${value}>${number(shown)}</span>
    ${error !== undefined && html`<span class="muted" title=${error}> ± ${number(error)}</span>`}
  `;
}

/** A histogram. Its bars are buttons: a click chooses one, or none again, and dragging chooses several. */
import { html, useSignal } from "./html.js";
import { number, plural } from "./text.js";

/** @typedef {{low: number, high: number, count: number}} Bar */
/** @typedef {[first: number, last: number]} Span Places of neighbouring bars. */

/**
 * The filter that finds what is in neighbouring bars: the last of all has its `high` too.
 * @param {Bar[]} bars
 * @param {Span | null} span
 * @returns {Record<string, number | null>}
 */
export function filterOf(bars, span) {
  if (!span) return { low: null, below: null, high: null };
  const [first, last] = span.toSorted((one, other) => one - other);
  const [{ high }, isLast] = [bars[last], last === bars.length - 1];
  return { low: bars[first].low, below: isLast ? null : high, high: isLast ? high : null };
}

/**
 * The bars between two values; null if there are none.
 * @param {Bar[]} bars
 * @param {[low: number, end: number] | null} range
 * @returns {Span | null}
 */
export function spanOf(bars, range) {
  if (!range) return null;
  const first = bars.findIndex(({ low }) => low >= range[0]);
  const last = bars.findLastIndex(({ high }) => high <= range[1]);
  return first < 0 || last < first ? null : [first, last];
}

/**
 * @typedef {object} Properties
 * @property {Bar[]} bars
 * @property {string} label
 * @property {string} one what is counted
 * @property {Span | null} chosen
 * @property {(span: Span | null) => void} onChoose
 */

/** @param {Properties} properties */
export function Histogram({ bars, label, one, chosen, onChoose }) {
  const dragged = useSignal(/** @type {Span | null} */ (null));
  const most = Math.max(1, ...bars.map(({ count }) => count));
  const shown = (dragged.value ?? chosen)?.toSorted((first, last) => first - last);
  const choose = (/** @type {Span} */ span) => onChoose(`${span}` === `${chosen}` ? null : span);
  const grab = (/** @type {PointerEvent} */ event) => {
    if (event.button) return;
    /** @type {Element} */ (event.currentTarget).setPointerCapture(event.pointerId);
    dragged.value = [placeAt(event), placeAt(event)];
  };
  const move = (/** @type {PointerEvent} */ event) => {
    if (dragged.value) dragged.value = [dragged.value[0], placeAt(event)];
  };
  const drop = () => {
    if (dragged.value) choose(dragged.value);
    dragged.value = null;
  };
  const placeAt = (/** @type {PointerEvent} */ event) => {
    const { left, width } = /** @type {Element} */ (event.currentTarget).getBoundingClientRect();
    const place = Math.floor(((event.clientX - left) / width) * bars.length);
    return Math.max(0, Math.min(bars.length - 1, place));
  };
  const bar = (/** @type {Bar} */ { low, high, count }, /** @type {number} */ place) => {
    const says = `${number(low)} to ${number(high)}: ${plural(count, one)}`;
    const press = (/** @type {MouseEvent} */ event) => event.detail || choose([place, place]); // by the keyboard
    return html`<button type="button" title=${says} aria-label=${says}
      aria-pressed=${shown !== undefined && shown[0] <= place && place <= shown[1]} onClick=${press}>
      <span style=${{ height: `${(count / most) * 100}%` }}></span>
    </button>`;
  };
  return html`
    <div class="histogram" role="group" aria-label=${label}>
      <div class="bars" onPointerDown=${grab} onPointerMove=${move} onPointerUp=${drop}
        onPointerCancel=${() => (dragged.value = null)}>${bars.map(bar)}</div>
      <div class="muted axis" aria-hidden="true">
        <span>${number(bars[0].low)}</span><span>at most ${plural(most, one)}</span><span>${number(bars[bars.length - 1].high)}</span>
      </div>
    </div>
  `;
}

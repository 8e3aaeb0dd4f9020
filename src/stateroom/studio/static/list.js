/** A list of any length, of which only the rows in sight are in the page. */
import { html, useEffect, useId, useLayoutEffect, useRef, useSignal } from "./html.js";
import { layout, scrollTo } from "./layout.js";

const MOVES = /** @type {Record<string, (index: number, page: number, size: number) => number>} */ ({
  ArrowDown: (index) => index + 1,
  ArrowUp: (index) => index - 1,
  PageDown: (index, page) => index + page,
  PageUp: (index, page) => index - page,
  Home: () => 0,
  End: (_index, _page, size) => size - 1,
});

/**
 * @template T
 * @typedef {object} Properties
 * @property {import("./source.js").Source<T>} source
 * @property {string} label what the list has, for those who do not see it
 * @property {(row: T, index: number) => import("./html.js").Children} row its cells, with `role="gridcell"`
 * @property {import("./html.js").Signal<number>} active the index of the row that has the focus; -1 for none
 * @property {number} [rowHeight] in pixels, as in the style of `.row`
 * @property {import("./html.js").Children} [header] a row of elements with `role="columnheader"`
 * @property {(row: T, index: number) => void} [onOpen] Enter and double click
 * @property {(event: KeyboardEvent, row: T, index: number) => void} [onKey] other keys; `preventDefault` keeps them
 * @property {(row: T) => Record<string, any>} [rowProperties] more attributes of a row
 * @property {boolean} [follows] whether the active row stays in sight whatever scrolls the list
 * @property {string} [role] `grid` or `treegrid`
 * @property {string} [name] a class
 */

/**
 * A virtual list. It has the focus as a whole; arrow keys, Page, Home and End move the active row.
 * @template T
 * @param {Properties<T>} properties
 */
export function List({
  source,
  label,
  row,
  active,
  rowHeight = 32,
  header,
  onOpen,
  onKey,
  rowProperties,
  follows,
  role,
  name,
}) {
  const view = useRef(/** @type {HTMLDivElement | null} */ (null));
  const place = useSignal({ scrollTop: 0, viewHeight: 600 });
  const id = useId();
  const size = source.size.value;
  source.version.value; // rows that have changed are drawn again
  const given = { size, rowHeight, ...place.value };
  const { first, last, top, height } = layout(given);
  usePlace(view, place, header ? rowHeight : 0);
  const kept = useInserted(source, view, active, rowHeight);
  useEffect(() => void source.need(first, last + 1), [source, first, last, size]);
  useLayoutEffect(() => {
    if (view.current && active.value >= 0 && active.value !== kept.current) {
      const { scrollTop, clientHeight } = view.current; // which are not measured yet when the list is new
      const now = { ...given, scrollTop, viewHeight: clientHeight - (header ? rowHeight : 0) };
      view.current.scrollTop = scrollTo(now, active.value);
    }
    kept.current = -1;
  }, [active.value, follows && given.viewHeight, follows && given.scrollTop]);
  const press = (/** @type {KeyboardEvent} */ event) => {
    const current = source.at(active.value);
    if (event.target instanceof Element && event.target.closest("a, button, input")) return;
    if (current !== undefined && onKey) onKey(event, current, active.value);
    if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key in MOVES && size) {
      event.preventDefault();
      if (event.key === "End" && !source.complete.value) return void goToEnd(source, active);
      const next = MOVES[event.key](active.value, Math.floor(given.viewHeight / rowHeight), size);
      active.value = Math.max(0, Math.min(size - 1, next));
    } else if (event.key === "Enter" && current !== undefined && onOpen) {
      event.preventDefault();
      onOpen(current, active.value);
    }
  };
  const indices = Array.from({ length: Math.max(0, last - first + 1) }, (_, offset) => first + offset);
  return html`
    <div
      ref=${view}
      class=${`list ${name ?? ""}`}
      role=${role ?? "grid"}
      aria-label=${label}
      aria-rowcount=${source.complete.value ? size + (header ? 1 : 0) : -1}
      aria-activedescendant=${active.value >= first && active.value <= last ? `${id}-${active.value}` : undefined}
      tabindex="0"
      onKeyDown=${press}
    >
      ${header && html`<div class="row header" role="row" aria-rowindex="1">${header}</div>`}
      <div class="rows" role="rowgroup" style=${{ height: `${height}px` }}>
        <div class="sight" role="presentation" style=${{ transform: `translateY(${top}px)` }}>
          ${indices.map((index) => {
            const found = source.at(index);
            return html`
              <div
                key=${index}
                id=${`${id}-${index}`}
                class="row"
                role="row"
                aria-rowindex=${index + (header ? 2 : 1)}
                aria-selected=${index === active.value}
                onClick=${() => (active.value = index)}
                onDblClick=${() => found !== undefined && onOpen?.(found, index)}
                ...${found === undefined ? {} : rowProperties?.(found)}
              >
                ${found === undefined ? html`<div role="gridcell" class="muted">…</div>` : row(found, index)}
              </div>
            `;
          })}
        </div>
      </div>
    </div>
  `;
}

/**
 * Load all rows, and go to the last one.
 * @param {import("./source.js").Source<any>} source
 * @param {import("./html.js").Signal<number>} active
 */
async function goToEnd(source, active) {
  await source.need(0, Number.POSITIVE_INFINITY);
  active.value = source.size.value - 1;
}

/**
 * Follow where the list is scrolled to, and how high it is.
 * @param {{current: HTMLDivElement | null}} view
 * @param {import("./html.js").Signal<{scrollTop: number, viewHeight: number}>} place
 * @param {number} covered pixels at the top that the header covers
 */
function usePlace(view, place, covered) {
  useLayoutEffect(() => {
    const element = /** @type {HTMLDivElement} */ (view.current);
    const look = () => {
      const [scrollTop, viewHeight] = [element.scrollTop, element.clientHeight - covered];
      if (scrollTop !== place.value.scrollTop || viewHeight !== place.value.viewHeight) {
        place.value = { scrollTop, viewHeight };
      }
    };
    const sizes = new ResizeObserver(look);
    sizes.observe(element);
    element.addEventListener("scroll", look, { passive: true });
    return () => {
      sizes.disconnect();
      element.removeEventListener("scroll", look);
    };
  }, []);
}

/**
 * Rows that come at the top move the others down; who has scrolled, or chosen a row, stays with it.
 * @param {import("./source.js").Source<any>} source
 * @param {{current: HTMLDivElement | null}} view
 * @param {import("./html.js").Signal<number>} active
 * @param {number} rowHeight
 * @returns {{current: number}} the active row that was only moved down
 */
function useInserted(source, view, active, rowHeight) {
  const kept = useRef(-1);
  const seen = useRef({ source, amount: source.inserted.peek() });
  if (seen.current.source !== source) seen.current = { source, amount: source.inserted.peek() };
  useLayoutEffect(() => {
    const fresh = source.inserted.value - seen.current.amount;
    seen.current.amount = source.inserted.value;
    if (!fresh) return;
    if (active.value >= 0) {
      kept.current = active.value + fresh;
      active.value = kept.current;
    }
    if (view.current && view.current.scrollTop > 0) view.current.scrollTop += fresh * rowHeight;
  }, [source, source.inserted.value]);
  return kept;
}

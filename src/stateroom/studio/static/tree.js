/** A state as a tree that opens and closes. Only the rows in sight are in the page. */
import { Copied, copy } from "./copy.js";
import { Dialog } from "./dialog.js";
import { html, useEffect, useMemo, useSignal } from "./html.js";
import { useKeys } from "./keys.js";
import { List } from "./list.js";
import { above, brief, find, idOf, LONGEST, MOST_FOUND, pathOf, rowsOf } from "./places.js";
import { parameter } from "./route.js";
import { fixedSource } from "./source.js";
import { number, visible } from "./text.js";

/** @typedef {import("./places.js").Place} Place */
/** @typedef {import("./places.js").Node} Node */
/** @typedef {{place: Place, kind: "changed" | "new" | "gone"}} Change */

const text = parameter("find");

/**
 * A state as a tree. Places in `changes` are marked and opened.
 * @param {{value: unknown, changes?: Change[], label?: string}} properties
 */
export function Tree({ value, changes = [], label = "State" }) {
  const opened = useSignal(/** @type {ReadonlySet<string>} */ (above(changes.map(({ place }) => place))));
  const active = useSignal(0);
  const whole = useSignal(/** @type {Node | null} */ (null));
  const marks = useMemo(() => new Map(changes.map(({ place, kind }) => [idOf(place), kind])), [changes]);
  const found = useMemo(
    () =>
      text.value ? find(value, text.value) : changes.filter(({ kind }) => kind !== "gone").map(({ place }) => place),
    [value, text.value, changes],
  );
  const foundIds = useMemo(() => new Set(text.value ? found.map(idOf) : []), [found]);
  const rows = useMemo(() => rowsOf(value, opened.value), [value, opened.value]);
  const source = useMemo(() => fixedSource(rows), [rows]);
  useEffect(() => {
    opened.value = new Set([...opened.value, ...above(changes.map(({ place }) => place))]);
  }, [changes]);
  const goTo = (/** @type {Place} */ place) => {
    opened.value = new Set([...opened.value, ...above([place])]);
    active.value = rowsOf(value, opened.value).findIndex(({ id }) => id === idOf(place));
  };
  const step = (/** @type {number} */ by) => {
    if (!found.length) return;
    const at = found.findIndex((place) => idOf(place) === rows[active.value]?.id);
    goTo(found[at < 0 ? (by > 0 ? 0 : found.length - 1) : (at + by + found.length) % found.length]);
  };
  const toggle = (/** @type {Node} */ node) => {
    const next = new Set(opened.value);
    if (!next.delete(node.id)) next.add(node.id);
    opened.value = next;
  };
  const open = (/** @type {Node} */ node) => {
    if (node.open === null) whole.value = node;
    else toggle(node);
  };
  const press = (/** @type {KeyboardEvent} */ event, /** @type {Node} */ node, /** @type {number} */ index) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "ArrowRight" && node.open === false) toggle(node);
    else if (event.key === "ArrowRight" && node.open) active.value = index + 1;
    else if (event.key === "ArrowLeft" && node.open) toggle(node);
    else if (event.key === "ArrowLeft" && node.place.length > 1) goTo(node.place.slice(0, -1));
    else return;
    event.preventDefault();
  };
  const copyPath = () => rows[active.value] && copy(pathOf(rows[active.value].place), "The path");
  useKeys("Tree", {
    ArrowRight: ["Open a row, or go into it"],
    ArrowLeft: ["Close a row, or go out of it"],
    y: ["Copy the path of a row", copyPath],
  });
  const row = (/** @type {Node} */ node) => html`<${Row} node=${node} toggle=${toggle} open=${open} />`;
  const about = (/** @type {Node} */ node) => ({
    "aria-level": node.place.length,
    "aria-posinset": node.position,
    "aria-setsize": node.siblings,
    "aria-expanded": node.open ?? undefined,
    class: `row ${marks.get(node.id) ?? ""} ${foundIds.has(node.id) ? "found" : ""}`,
  });
  return html`
    <div class="tree">
      <${Search} found=${found} step=${step} />
      <${List} source=${source} label=${label} role="treegrid" rowHeight=${24} active=${active} row=${row}
        onOpen=${open} onKey=${press} rowProperties=${about} />
      ${whole.value && html`<${Whole} node=${whole.value} onClose=${() => (whole.value = null)} />`}
    </div>
  `;
}

/** @param {{found: Place[], step: (by: number) => void}} properties */
function Search({ found, step }) {
  const press = (/** @type {KeyboardEvent} */ event) => {
    if (event.key === "Enter") step(event.shiftKey ? -1 : 1);
  };
  const told = found.length >= MOST_FOUND ? `${number(MOST_FOUND)} or more` : number(found.length);
  return html`
    <div class="bar">
      <input type="search" aria-label="Find in the state" placeholder="Find" value=${text.value} onKeyDown=${press}
        onInput=${(/** @type {any} */ event) => (text.value = event.target.value)} />
      ${(text.value || found.length > 0) && html`<span class="muted" role="status">${told} ${text.value ? "found" : "changed"}</span>`}
      ${found.length > 0 && html`<button type="button" class="quiet" onClick=${() => step(1)}>Next</button>`}
      <${Copied} />
    </div>
  `;
}

/** @param {{node: Node, toggle: (node: Node) => void, open: (node: Node) => void}} properties */
function Row({ node, toggle, open }) {
  const { place, value } = node;
  const isLong = typeof value === "string" && (value.length > LONGEST || value.includes("\n"));
  return html`
    <div role="gridcell" class="key" style=${{ paddingInlineStart: `${place.length * 16 - 12}px` }}>
      <span class="twisty" aria-hidden="true" onClick=${() => node.open !== null && toggle(node)}>
        ${node.open === null ? "" : node.open ? "▾" : "▸"}</span>${visible(place.at(-1))}
    </div>
    <div role="gridcell" class=${`value ${value === null ? "null" : typeof value}`}>
      <span class="clip">${visible(brief(value))}</span>
      ${isLong && html`<button type="button" class="quiet" tabindex="-1" onClick=${() => open(node)}>Show all</button>`}
    </div>
  `;
}

/** @param {{node: Node, onClose: () => void}} properties */
function Whole({ node, onClose }) {
  const text = typeof node.value === "string" ? node.value : JSON.stringify(node.value);
  return html`
    <${Dialog} title=${visible(pathOf(node.place))} wide onClose=${onClose}>
      <pre>${visible(text)}</pre>
      <div class="bar">
        <button type="button" onClick=${() => copy(text, "The value")}>Copy value</button>
        <button type="button" onClick=${() => copy(pathOf(node.place), "The path")}>Copy path</button>
        <${Copied} />
      </div>
    <//>
  `;
}

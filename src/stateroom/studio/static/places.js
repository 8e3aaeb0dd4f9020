/** Places in a state: the rows of its tree, search, and how a place is written. */
import { plural, shorten } from "./text.js";

export const LONGEST = 160; // characters of a text in a row
/** Places that a search finds at most. */
export const MOST_FOUND = 1000;

/** @typedef {(string | number)[]} Place Keys and indices from the root. */

/**
 * @typedef {object} Node A row of the tree.
 * @property {Place} place
 * @property {string} id the place as JSON
 * @property {unknown} value
 * @property {boolean | null} open null if there is nothing inside
 * @property {number} position among its siblings, from 1
 * @property {number} siblings
 */

/** @param {Place} place */
export const idOf = (place) => JSON.stringify(place);

/**
 * The children of a value, with their keys.
 * @param {unknown} value
 * @returns {[string | number, unknown][]}
 */
function inside(value) {
  if (Array.isArray(value)) return value.map((item, index) => [index, item]);
  return value !== null && typeof value === "object" ? Object.entries(value) : [];
}

/** @param {unknown} value */
const isEmpty = (value) => value === null || typeof value !== "object" || Object.keys(value).length === 0;

/**
 * The rows that are there while these places are open.
 * @param {unknown} root
 * @param {ReadonlySet<string>} opened ids of places
 * @returns {Node[]}
 */
export function rowsOf(root, opened) {
  /** @type {Node[]} */
  const rows = [];
  const add = (/** @type {unknown} */ value, /** @type {Place} */ place) => {
    const children = inside(value);
    children.forEach(([key, child], index) => {
      const below = [...place, key];
      const id = idOf(below);
      const open = isEmpty(child) ? null : opened.has(id);
      rows.push({ place: below, id, value: child, open, position: index + 1, siblings: children.length });
      if (open) add(child, below);
    });
  };
  add(root, []);
  return rows;
}

/**
 * Places whose key or text has a text in it, in order; at most 1,000.
 * @param {unknown} root
 * @param {string} text
 * @returns {Place[]}
 */
export function find(root, text) {
  const wanted = text.toLowerCase();
  /** @type {Place[]} */
  const found = [];
  const look = (/** @type {unknown} */ value, /** @type {Place} */ place) => {
    for (const [key, child] of inside(value)) {
      if (found.length >= MOST_FOUND) return;
      const own = isEmpty(child) ? `${key}\n${child}` : String(key);
      if (own.toLowerCase().includes(wanted)) found.push([...place, key]);
      look(child, [...place, key]);
    }
  };
  if (wanted) look(root, []);
  return found;
}

/**
 * The ids of all places above these, which are open when these are in sight.
 * @param {Place[]} places
 */
export function above(places) {
  return new Set(places.flatMap((place) => place.slice(0, -1).map((_, index) => idOf(place.slice(0, index + 1)))));
}

/**
 * A place as Python would write it: `orders["o-1"].lines[0]`.
 * @param {Place} place
 */
export function pathOf(place) {
  const part = (/** @type {string | number} */ key) => {
    if (typeof key === "number") return `[${key}]`;
    return /^[A-Za-z_]\w*$/.test(key) ? `.${key}` : `[${JSON.stringify(key)}]`;
  };
  return place.map(part).join("").replace(/^\./, "");
}

/**
 * A value in one row.
 * @param {unknown} value
 */
export function brief(value) {
  if (Array.isArray(value)) return value.length ? `[${plural(value.length, "item")}]` : "[]";
  if (value !== null && typeof value === "object") {
    const size = Object.keys(value).length;
    return size ? `{${plural(size, "key")}}` : "{}";
  }
  return typeof value === "string" ? JSON.stringify(shorten(value, LONGEST)) : String(value);
}

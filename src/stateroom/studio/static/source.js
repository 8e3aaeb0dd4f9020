/** Rows for a list that the server gives page by page. A list asks a source for the rows that it shows. */
import { batch, signal } from "./html.js";

/**
 * What a list needs of its rows.
 * @template T
 * @typedef {object} Source
 * @property {import("./html.js").Signal<number>} size rows that are known of
 * @property {import("./html.js").Signal<boolean>} complete whether there are no more rows than `size`
 * @property {import("./html.js").Signal<number>} version changes whenever a row does
 * @property {import("./html.js").Signal<number>} inserted rows that came at the top since the beginning
 * @property {import("./html.js").Signal<Error | null>} error why the last page did not come
 * @property {(index: number) => T | undefined} at a row, if it is there
 * @property {(first: number, last: number) => Promise<void>} need have these rows loaded
 */

/**
 * Rows that are all there.
 * @template T
 * @param {T[]} rows
 * @returns {Source<T>}
 */
export function fixedSource(rows) {
  return {
    size: signal(rows.length),
    complete: signal(true),
    version: signal(0),
    inserted: signal(0),
    error: signal(null),
    at: (index) => rows[index],
    need: async () => {},
  };
}

/**
 * Rows behind a cursor: each page says where the next one begins. New rows may come at the top.
 * @template T
 * @implements {Source<T>}
 */
export class CursorSource {
  size = signal(0);
  complete = signal(false);
  version = signal(0);
  inserted = signal(0);
  error = signal(/** @type {Error | null} */ (null));
  /** @type {T[]} */
  #rows = [];
  #keys = new Set();
  #cursor = /** @type {string | null} */ (null);
  /** @type {Promise<void> | null} */
  #loading = null;

  /**
   * @param {(cursor: string | null) => Promise<{rows: T[], next: string | null}>} load
   * @param {(row: T) => unknown} key no row is in the list twice
   */
  constructor(load, key) {
    this.load = load;
    this.key = key;
  }

  /** @param {number} index */
  at(index) {
    return this.#rows[index];
  }

  /**
   * @param {number} _first
   * @param {number} last
   */
  async need(_first, last) {
    while (last >= this.#rows.length && !this.complete.value && !this.error.value) {
      this.#loading ??= this.#page().finally(() => {
        this.#loading = null;
      });
      await this.#loading;
    }
  }

  /**
   * Whether a row is in the list; may be passed on as a function.
   * @param {T} row
   */
  has = (row) => this.#keys.has(this.key(row));

  /** Try again after an error. */
  retry() {
    this.error.value = null;
    return this.need(0, this.#rows.length);
  }

  /**
   * Put new rows at the top, and those that are in the list already in the place of what is known of them.
   * @param {T[]} rows the first one on top
   */
  insert(rows) {
    const fresh = rows.filter((row) => !this.has(row));
    const known = new Map(rows.filter(this.has).map((row) => [this.key(row), row]));
    if (known.size) this.#rows = this.#rows.map((row) => known.get(this.key(row)) ?? row);
    this.#rows.unshift(...fresh);
    for (const row of fresh) this.#keys.add(this.key(row));
    this.#changed(fresh.length);
  }

  async #page() {
    try {
      const { rows, next } = await this.load(this.#cursor);
      const fresh = rows.filter((row) => !this.has(row));
      for (const row of fresh) {
        this.#rows.push(row);
        this.#keys.add(this.key(row));
      }
      this.#cursor = next;
      this.complete.value = next === null;
      this.#changed(0);
    } catch (error) {
      this.error.value = /** @type {Error} */ (error);
    }
  }

  /** @param {number} inserted */
  #changed(inserted) {
    batch(() => {
      this.size.value = this.#rows.length;
      this.inserted.value += inserted;
      this.version.value++;
    });
  }
}

/**
 * Rows with numbers, read from any place. One page is loaded at a time, and only what was needed last: who scrolls
 * over many pages waits for none of them. The oldest pages are forgotten.
 * @template T
 * @implements {Source<T>}
 */
export class RangeSource {
  complete = signal(true);
  version = signal(0);
  inserted = signal(0);
  error = signal(/** @type {Error | null} */ (null));
  /** @type {Map<number, T[]>} */
  #pages = new Map();
  #needed = { first: 0, last: -1 };
  /** @type {Promise<void> | null} */
  #loading = null;
  /** Pages to read again. @type {Set<number>} */
  #old = new Set();

  /**
   * @param {(first: number, limit: number) => Promise<T[]>} load
   * @param {number} size
   * @param {number} [pageSize]
   * @param {number} [mostPages]
   */
  constructor(load, size, pageSize = 200, mostPages = 50) {
    this.load = load;
    this.size = signal(size);
    this.pageSize = pageSize;
    this.mostPages = mostPages;
  }

  /** @param {number} index */
  at(index) {
    return this.#pages.get(Math.floor(index / this.pageSize))?.[index % this.pageSize];
  }

  /**
   * @param {number} first
   * @param {number} last
   * @returns {Promise<void>}
   */
  need(first, last) {
    this.#needed = { first, last };
    this.#loading ??= this.#loadNeeded().then(() => {
      this.#loading = null;
      if (this.#missing() >= 0) return this.need(this.#needed.first, this.#needed.last); // needed since the last look
    });
    return this.#loading;
  }

  /** Try again after an error. */
  retry() {
    this.error.value = null;
    return this.need(this.#needed.first, this.#needed.last);
  }

  /**
   * All rows may be others now. Those that are there are shown until they are read again.
   * @param {number} size
   */
  renew(size) {
    this.#old = new Set(this.#pages.keys());
    this.size.value = size;
    return this.need(this.#needed.first, this.#needed.last);
  }

  /**
   * Add rows at the end, such as those that a stream brings.
   * @param {T[]} rows
   */
  append(rows) {
    for (const row of rows) {
      const [page, place] = [Math.floor(this.size.value / this.pageSize), this.size.value % this.pageSize];
      const held = this.#pages.get(page) ?? (place ? undefined : []);
      if (held && held.length >= place) this.#keep(page, Object.assign(held, { [place]: row }));
      this.size.value++;
    }
    this.version.value++;
  }

  async #loadNeeded() {
    try {
      for (let page = this.#missing(); page >= 0; page = this.#missing()) {
        const whole = this.#whole(page);
        const old = this.#old;
        const rows = await this.load(page * this.pageSize, this.pageSize);
        if (old !== this.#old) continue; // `renew` came meanwhile
        this.#keep(page, rows);
        if (rows.length < whole) this.size.value = page * this.pageSize + rows.length; // it has become shorter
        this.version.value++;
      }
    } catch (error) {
      this.error.value = /** @type {Error} */ (error);
    }
  }

  /** A page that is needed and is not there, or not wholly; -1 if there is none. */
  #missing() {
    const last = Math.min(this.#needed.last, this.size.value - 1);
    const first = Math.max(this.#needed.first, 0);
    for (let page = Math.floor(first / this.pageSize); page * this.pageSize <= last; page++) {
      const held = this.#old.has(page) ? 0 : (this.#pages.get(page)?.length ?? 0);
      if (!this.error.value && held < this.#whole(page)) return page;
    }
    return -1;
  }

  /** @param {number} page */
  #whole(page) {
    return Math.min(this.pageSize, this.size.value - page * this.pageSize);
  }

  /**
   * @param {number} page
   * @param {T[]} rows
   */
  #keep(page, rows) {
    this.#pages.delete(page);
    this.#pages.set(page, rows);
    this.#old.delete(page);
    const [oldest] = this.#pages.keys();
    if (this.#pages.size > this.mostPages) this.#pages.delete(oldest);
  }
}

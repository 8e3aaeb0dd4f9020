/** A session's log as rows: which revisions there are, of which kinds, and what each entry says in a line. */
import { get } from "./api.js";

/** @typedef {{revision: number, kind: string, at: number, changes: any[], [name: string]: any}} Entry */
/** @typedef {[kind: string, first: number, last: number]} Run Neighbours of one kind. */

/** @typedef {{letter: string, tone: string, spoken: boolean}} Kind */

/** The kinds of entries as the server declares them in its page, and parts that were pruned. @type {Record<string, Kind>} */
const KINDS = {
  ...JSON.parse(globalThis.document?.getElementById("kinds")?.textContent ?? "{}"),
  pruned: { letter: "–", tone: "calm", spoken: false },
};

/**
 * How a kind looks.
 * @param {string} kind
 */
export const lookOf = (kind) => KINDS[kind] ?? { letter: kind.slice(0, 1).toUpperCase(), tone: "calm" };

/**
 * A row for a part that was pruned.
 * @param {number} first
 * @param {number} until
 * @returns {Entry}
 */
export function prunedEntry(first, until) {
  const line = until > first ? `revisions ${first} to ${until}` : "";
  return { revision: first, first, until, kind: "pruned", title: "pruned", line, at: 0, changes: [] };
}

/**
 * The runs of a log with those that were pruned.
 * @param {Run[]} runs
 * @param {number} newest
 * @returns {Run[]}
 */
export function withPruned(runs, newest) {
  /** @type {Run[]} */
  const result = [];
  let next = 1;
  for (const run of [...runs, /** @type {Run} */ (["", newest + 1, newest])]) {
    if (run[1] > next) result.push(["pruned", next, run[1] - 1]);
    if (run[0]) result.push(run);
    next = run[2] + 1;
  }
  return result;
}

/** The rows of a list, some or all of a log's revisions; a part that was pruned is one row. */
export class Rows {
  /** @type {{kind: string, first: number, last: number, start: number}[]} */
  #parts = [];
  size = 0;

  /**
   * @param {Run[]} runs
   * @param {string[]} [kinds] only these
   */
  constructor(runs, kinds = []) {
    this.kinds = kinds;
    for (const run of runs) this.add(run);
  }

  /**
   * Add a run at the end; whether it has rows.
   * @param {Run} run
   */
  add([kind, first, last]) {
    if (this.kinds.length && !this.kinds.includes(kind)) return false;
    const before = this.#parts.at(-1);
    const isPruned = kind === "pruned";
    if (before && before.last + 1 === first && before.kind !== "pruned" && !isPruned) before.last = last;
    else this.#parts.push({ kind, first, last, start: this.size });
    this.size += isPruned ? 1 : last - first + 1;
    return true;
  }

  /**
   * The revision of a row; of a part that was pruned its first, and its last as `until`.
   * @param {number} index
   */
  at(index) {
    const { kind, first, last, start } = this.#last((part) => part.start <= index);
    return kind === "pruned" ? { revision: first, kind, until: last } : { revision: first + index - start, kind: "" };
  }

  /**
   * The row of a revision, or the last one before it; -1 if there is none.
   * @param {number} revision
   */
  indexOf(revision) {
    if (!this.size || revision < this.#parts[0].first) return -1;
    const { kind, first, last, start } = this.#last((part) => part.first <= revision);
    return kind === "pruned" ? start : start + Math.min(revision, last) - first;
  }

  /** @param {(part: {first: number, start: number}) => boolean} holds for all parts up to the one that is looked for */
  #last(holds) {
    let [low, high] = [0, this.#parts.length - 1];
    while (low < high) {
      const middle = Math.ceil((low + high) / 2);
      if (holds(this.#parts[middle])) low = middle;
      else high = middle - 1;
    }
    return this.#parts[low];
  }
}

/**
 * Entries for some rows.
 * @param {string} path of the session
 * @param {Rows} rows
 * @param {number} first
 * @param {number} limit
 * @returns {Promise<Entry[]>}
 */
export async function readRows(path, rows, first, limit) {
  /** @type {Map<number, Entry>} */
  const found = new Map();
  const places = Array.from({ length: Math.min(limit, rows.size - first) }, (_, offset) => rows.at(first + offset));
  let covered = 0;
  for (const [index, { revision, kind }] of places.entries()) {
    if (kind === "pruned" || revision <= covered) continue;
    const asked = { after: revision - 1, limit: places.length - index, kinds: rows.kinds.join() };
    const { entries, next } = await get(`${path}/log`, asked);
    for (const entry of entries) found.set(entry.revision, entry);
    covered = next ?? Number.POSITIVE_INFINITY;
  }
  return places.map(({ revision, until = revision }) => found.get(revision) ?? prunedEntry(revision, until));
}

/**
 * The items that a task begins with.
 * @param {Record<string, any> | undefined} row
 * @returns {any[]}
 */
export function itemsOfTask(row) {
  const { instructions, input = [] } = row?.responses_create_params ?? {};
  const first = Array.isArray(input) ? input : [{ role: "user", content: input }];
  return instructions ? [{ role: "system", content: instructions }, ...first] : first;
}

/**
 * Entries without those that rewinds have undone.
 * @param {Entry[]} entries in order
 */
function withoutUndone(entries) {
  let last = Number.POSITIVE_INFINITY;
  return entries
    .toReversed()
    .filter(({ kind, revision, to }) => {
      if (revision > last) return false;
      if (kind === "rewind") last = to;
      return true;
    })
    .reverse();
}

const SPOKEN = Object.keys(KINDS).filter((kind) => KINDS[kind].spoken);

/** The kinds of entries that `itemsOf` needs. */
export const TALK = ["seed", "call", "rewind", ...SPOKEN].join();

/**
 * The items of a conversation: what the task began with, messages, and calls that a person made by hand. What a rewind
 * has undone is not among them.
 * @param {Entry[]} entries in order
 * @returns {any[]}
 */
export function itemsOf(entries) {
  return withoutUndone(entries).flatMap(({ kind, input, items, name, output, by, call_id }) => {
    if (kind === "seed") return itemsOfTask(input);
    if (kind !== "call") return items ?? [];
    if (!by) return []; // a model's call is among its messages
    const call = { type: "function_call", call_id, name, arguments: JSON.stringify(input) };
    return [call, { type: "function_call_output", call_id, output }];
  });
}

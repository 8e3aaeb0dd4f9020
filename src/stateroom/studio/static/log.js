/** A session's log as rows: which revisions there are, of which kinds, and what each entry says in a line. */
import { get } from "./api.js";
import { said } from "./chat.js";
import { shorten } from "./text.js";

/** @typedef {{revision: number, kind: string, at: number, changes: any[], [name: string]: any}} Entry */
/** @typedef {[kind: string, first: number, last: number]} Run Neighbours of one kind. */

/** How kinds of entries look: a letter, and a tone. @type {Record<string, [string, string]>} */
const LOOKS = {
  seed: ["S", "calm"],
  call: ["C", "accent"],
  started: ["…", "accent"],
  failed: ["!", "bad"],
  asked: ["?", "warn"],
  message: ["M", "calm"],
  checkpoint: ["P", "point"],
  rewind: ["R", "warn"],
  edit: ["E", "person"],
  fork: ["F", "person"],
  verdict: ["V", "good"],
  close: ["X", "calm"],
  pruned: ["–", "calm"],
};

/**
 * The letter and the tone of a kind.
 * @param {string} kind
 */
export const lookOf = (kind) => LOOKS[kind] ?? [kind.slice(0, 1).toUpperCase(), "calm"];

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
  return places.map(
    (place) => found.get(place.revision) ?? { until: place.revision, ...place, kind: "pruned", at: 0, changes: [] },
  );
}

/**
 * Items of a conversation in a line: what was said or called before what came back.
 * @param {any[]} items
 */
function lineOf(items) {
  const isOutput = (/** @type {any} */ item) => Number(item.type === "function_call_output");
  return [...items]
    .sort((one, other) => isOutput(one) - isOutput(other))
    .map(wordsOf)
    .join(" ");
}

/** @param {any} item */
function wordsOf(item) {
  if (item.type === "function_call") return `→ ${item.name} ${said(item.arguments)}`;
  if (item.type === "function_call_output") return `← ${said(item.output)}`;
  return said(item.content ?? item.summary);
}

/** @typedef {[name: string, text: string]} Line What an entry is about, and what it says. */

/** @type {WeakMap<Entry, Line>} */
const lines = new WeakMap();

/**
 * An entry in a line; made once, as its texts may be long.
 * @param {Entry} entry
 * @returns {Line}
 */
export function headline(entry) {
  const line = lines.get(entry) ?? written(entry);
  lines.set(entry, line);
  return line;
}

/**
 * @param {Entry} entry
 * @returns {Line}
 */
function written(entry) {
  const { kind, name, input, error, by, reason, verdict } = entry;
  const texts = /** @type {Record<string, [string, unknown]>} */ ({
    seed: ["seed", ""],
    message: [by ?? "message", entry.items?.length ? lineOf(entry.items) : (entry.moves ?? []).join(" ")],
    failed: [name, error],
    checkpoint: ["checkpoint", [name, by && `by ${by}`].filter(Boolean).join(" ")],
    rewind: ["rewind", `to ${entry.to}`],
    edit: ["edit", [by && `by ${by}`, reason].filter(Boolean).join(": ")],
    fork: ["fork", `by ${by}`],
    verdict: ["verdict", `reward ${verdict?.reward}${verdict?.reason ? `: ${verdict.reason}` : ""}`],
    pruned: ["pruned", entry.until > entry.revision ? `revisions ${entry.revision} to ${entry.until}` : ""],
  });
  const [title, text] = texts[kind] ?? [name ?? kind, input === undefined ? "" : JSON.stringify(input)];
  return [String(title), shorten(String(text ?? ""), 300)];
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

/** The kinds of entries that `itemsOf` needs. */
export const TALK = ["seed", "message", "call", "compaction", "rewind"].join();

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

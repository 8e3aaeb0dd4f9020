/** A session that is looked at: its head, its log, and what the stream says of it. */
import { get } from "./api.js";
import { batch, html, signal, useEffect, useMemo, useRef, useSignal } from "./html.js";
import { useLoad } from "./load.js";
import { itemsOf, prunedEntry, Rows, readRows, TALK, withPruned } from "./log.js";
import { Link, view } from "./route.js";
import { CursorSource, RangeSource } from "./source.js";
import { streamOf } from "./stream.js";
import { visible } from "./text.js";

/** @typedef {import("./log.js").Entry} Entry */

const PAGE = 100;

/**
 * The path of a session, in the API and in the page.
 * @param {string} base
 * @param {string} id
 */
export const pathOf = (base, id) => `${base}/sessions/${encodeURIComponent(id)}`;

/**
 * What comes before the paths of a run's sessions.
 * @param {string | undefined} run
 */
export const baseOf = (run) => (run === undefined ? "" : `/runs/${encodeURIComponent(run)}`);

/**
 * A link to a session, at a revision.
 * @param {{base: string, id: string, at?: number | string}} properties
 */
export function SessionLink({ base, id, at }) {
  const place = at === undefined ? "" : `@${at}`;
  return html`<${Link} class="data" to=${view(pathOf(base, id), { at })}>${visible(id)}${place}<//>`;
}

/** Runs one thing at a time, in order. */
function lane() {
  let last = /** @type {Promise<any>} */ (Promise.resolve());
  return (/** @type {() => Promise<any>} */ run) => {
    last = last.then(run, run);
    return last;
  };
}

/**
 * A list of a log's entries.
 * @typedef {object} Entries
 * @property {import("./source.js").Source<Entry> & {retry: () => unknown}} source
 * @property {(index: number) => number} revisionAt
 * @property {(revision: number) => number} indexOf
 * @property {(entry: Entry) => void} append
 * @property {() => void} [stop] read no more
 */

/** The log of a session. It is read by one request at a time. */
export class Log {
  #run = lane();

  /**
   * @param {string} path
   * @param {{revision: number, kinds: import("./log.js").Run[]}} known
   */
  constructor(path, { revision, kinds }) {
    this.path = path;
    this.newest = signal(revision);
    /** All revisions by kind. */
    this.runs = withPruned(kinds, revision);
  }

  /**
   * The part that a revision was pruned with, if it was.
   * @param {number} revision
   */
  pruned(revision) {
    return this.runs.find(([kind, first, last]) => kind === "pruned" && first <= revision && revision <= last);
  }

  /** How many entries of each kind there are. @returns {Map<string, number>} */
  counts() {
    const counts = new Map();
    for (const [kind, first, last] of this.runs) counts.set(kind, (counts.get(kind) ?? 0) + last - first + 1);
    return counts;
  }

  /**
   * @param {string} kind
   * @param {number} revision
   */
  append(kind, revision) {
    const last = this.runs[this.runs.length - 1];
    if (last?.[0] === kind) last[2] = revision;
    else this.runs.push([kind, revision, revision]);
    this.newest.value = revision;
  }

  /**
   * Read something of the session, after what is read now.
   * @param {string} what
   * @param {import("./api.js").Query} [query]
   */
  read(what, query) {
    return this.#run(() => get(`${this.path}/${what}`, query));
  }

  /**
   * All entries, or those of some kinds.
   * @param {string[]} kinds
   * @returns {Entries}
   */
  list(kinds) {
    const rows = new Rows(this.runs, kinds);
    const load = (/** @type {number} */ first, /** @type {number} */ limit) =>
      this.#run(() => readRows(this.path, rows, first, limit));
    const source = new RangeSource(load, rows.size, PAGE, 20);
    return {
      source,
      revisionAt: (index) => rows.at(index).revision,
      indexOf: (revision) => rows.indexOf(revision),
      append: (entry) => rows.add([entry.kind, entry.revision, entry.revision]) && source.append([entry]),
    };
  }

  /**
   * The entries in which the server finds a text.
   * @param {string} text
   * @param {string[]} kinds
   * @returns {Entries}
   */
  search(text, kinds) {
    let isStopped = false;
    const source = new CursorSource(
      async (after) => {
        if (isStopped) return { rows: [], next: null };
        const page = await this.read("log", { after: after ?? 0, text, kinds: kinds.join(), limit: PAGE });
        return { rows: page.entries, next: page.next === null ? null : String(page.next) };
      },
      (/** @type {Entry} */ entry) => entry.revision,
    );
    return {
      source,
      revisionAt: (index) => /** @type {Entry} */ (source.at(index)).revision,
      indexOf: (revision) => {
        for (let index = 0; index < source.size.value; index++)
          if (source.at(index)?.revision === revision) return index;
        return -1;
      },
      append: () => {},
      stop: () => {
        isStopped = true;
      },
    };
  }

  /**
   * The entry of a revision.
   * @param {number} revision
   * @returns {Promise<Entry>}
   */
  async entry(revision) {
    const gone = this.pruned(revision);
    if (gone) return { ...prunedEntry(gone[1], gone[2]), revision };
    return (await this.read("log", { after: revision - 1, limit: 1 })).entries[0];
  }

  /**
   * The last items of the conversation up to a revision, and whether there are earlier ones.
   * @param {number} revision
   * @param {number} most
   */
  async conversation(revision, most) {
    /** @type {Entry[]} */
    let entries = [];
    let before = /** @type {number | null} */ (revision + 1);
    while (before !== null && entries.length < most) {
      const page = await this.read("log", { before, kinds: TALK, limit: Math.min(most - entries.length, 1000) });
      entries = [...page.entries, ...entries];
      before = page.next;
    }
    return { items: itemsOf(entries), more: before !== null };
  }
}

/**
 * A session, its relatives and its log, followed from where it was read.
 * @param {string} base
 * @param {string} id
 */
export function useSession(base, id) {
  const path = pathOf(base, id);
  const head = useLoad((abort) => get(path, {}, abort), [path]);
  const lineage = useLoad((abort) => get(`${path}/lineage`, {}, abort), [path]);
  const kinds = useLoad((abort) => get(`${path}/log/kinds`, {}, abort), [path]);
  const log = useMemo(() => kinds.value.value && new Log(path, kinds.value.value), [kinds.value.value]);
  const list = useRef(/** @type {Entries | null} */ (null));
  const phase = useSignal("");
  useEffect(() => {
    if (!log) return;
    const entry = (/** @type {Entry} */ one) => {
      batch(() => {
        log.append(one.kind, one.revision);
        list.current?.append(one);
        phase.value = one.agent?.phase ?? phase.value;
      });
      if (one.kind === "verdict") head.retry();
    };
    return streamOf(base).follow(id, log.newest.value, { entry, end: head.retry });
  }, [log]);
  const retry = () => {
    for (const one of [head, lineage, kinds]) one.retry();
  };
  const error = head.error.value ?? kinds.error.value;
  return { head: head.value.value, lineage: lineage.value.value, log, list, phase: phase.value, error, retry };
}

/**
 * Read what a key names, one at a time: while one is read, only the newest of the next ones is kept.
 * @template T
 * @param {string} key
 * @param {() => Promise<T>} read
 */
export function useLatest(key, read) {
  const shown = useSignal(/** @type {{key?: string, value?: T, error?: Error}} */ ({}));
  const wanted = useRef(/** @type {{key: string, read: () => Promise<T>} | null} */ (null));
  const isBusy = useRef(false);
  wanted.current = { key, read };
  useEffect(
    () => () => {
      wanted.current = null;
    },
    [],
  );
  useEffect(() => {
    if (isBusy.current) return;
    isBusy.current = true;
    (async () => {
      while (wanted.current && wanted.current.key !== shown.value.key) {
        const { key, read } = wanted.current;
        shown.value = await read().then(
          (value) => ({ key, value }),
          (error) => ({ key, error, value: shown.value.value }),
        );
      }
      isBusy.current = false;
    })();
  }, [key]);
  return shown.value;
}

/** One stream of events of a store for the whole tab: entries of the sessions that are followed, and new sessions. */
import { address, open } from "./api.js";
import { computed, signal } from "./html.js";
import { parse } from "./json.js";

/** @typedef {{event: string, id: string, data: string}} ServerEvent */

/** Reads server-sent events from pieces of text. */
export class EventParser {
  #rest = "";
  #id = "";

  /**
   * @param {string} text
   * @returns {ServerEvent[]} the events that are complete now
   */
  push(text) {
    const held = this.#rest + text;
    const cut = held.endsWith("\r") ? held.length - 1 : held.length; // its line feed may be in the next piece
    const blocks = held.slice(0, cut).replace(/\r\n?/g, "\n").split("\n\n");
    this.#rest = (blocks.pop() ?? "") + held.slice(cut);
    return blocks.map((block) => this.#read(block)).filter((found) => found !== null);
  }

  /** @param {string} block */
  #read(block) {
    let event = "message";
    const data = [];
    for (const line of block.split("\n")) {
      const [, name, value] = line.match(/^([^:]*):? ?(.*)$/s) ?? [];
      if (name === "event") event = value;
      else if (name === "data") data.push(value);
      else if (name === "id") this.#id = value;
    }
    return data.length ? { event, id: this.#id, data: data.join("\n") } : null;
  }
}

/**
 * What one screen wants to hear of one session.
 * @typedef {object} Follower
 * @property {(entry: any) => void} entry called once for each entry, in order
 * @property {(end: {status?: string, error?: any}) => void} [end] the session is closed, expired, deleted or unreadable
 */

/**
 * What one screen wants to hear of all sessions.
 * @typedef {object} Observer
 * @property {(session: any, isNew: boolean) => void} session a new one, or one of the newest that has changed, as in the
 *   list
 * @property {() => void} listening from here on they are told: a list that is read now misses none
 */

const WAITS = [0, 250, 500, 1000, 2000, 5000];
const SILENCE = 60_000; // the server sends a comment every 15 s

/** @param {number} attempt */
const pause = (attempt) => new Promise((go) => setTimeout(go, WAITS[Math.min(attempt, WAITS.length - 1)]));

/** Follows sessions over one connection, which it opens again where it was lost: no gap, nothing twice. */
export class Stream {
  /** `idle`, `connecting`, `live` or `lost`. */
  state = signal("idle");
  /** @type {Set<Follower & {id: string, after: number}>} */
  #followers = new Set();
  /** @type {Set<Observer>} */
  #observers = new Set();
  #newest = ""; // where new sessions are continued
  #abort = new AbortController();
  #runs = false;
  #changed = false;

  /**
   * @param {(sessions: string, abort: AbortSignal) => Promise<ReadableStream<Uint8Array>>} connect
   * @param {(attempt: number) => Promise<unknown>} [wait] before the next attempt
   */
  constructor(connect, wait = pause) {
    this.connect = connect;
    this.wait = wait;
  }

  /**
   * Hear of each entry of a session after a revision; returns what stops it.
   * @param {string} id
   * @param {number} after
   * @param {Follower} follower
   */
  follow(id, after, follower) {
    const one = { ...follower, id, after };
    this.#followers.add(one);
    this.#restart();
    return () => this.#followers.delete(one) && this.#restart();
  }

  /**
   * Hear of each new session; returns what stops it.
   * @param {Observer} observer
   */
  followNew(observer) {
    this.#observers.add(observer);
    if (this.#newest) observer.listening();
    else this.#restart();
    return () => {
      this.#observers.delete(observer);
      if (!this.#observers.size) {
        this.#newest = "";
        this.#restart();
      }
    };
  }

  /** Positions, as the server reads them: each session with the revision after which it is followed. */
  positions() {
    /** @type {Map<string, number>} */
    const after = new Map();
    for (const one of this.#followers) after.set(one.id, Math.min(one.after, after.get(one.id) ?? one.after));
    const sessions = [...after].map(([id, at]) => `${encodeURIComponent(id).replaceAll("*", "%2A")}:${at}`);
    const fresh = this.#newest ? `*:${this.#newest}` : "*";
    return [...(this.#observers.size ? [fresh] : []), ...sessions].join(",");
  }

  #restart() {
    this.#changed = true;
    this.#abort.abort();
    if (!this.#runs) this.#run();
  }

  async #run() {
    this.#runs = true;
    for (let attempt = 0; ; ) {
      await this.wait(attempt);
      this.#changed = false;
      const positions = this.positions();
      if (!positions) break;
      this.#abort = new AbortController();
      if (this.state.value !== "live") this.state.value = "connecting";
      try {
        const body = await this.connect(positions, this.#abort.signal);
        this.state.value = "live";
        if (attempt && this.#newest) for (const one of [...this.#observers]) one.listening(); // for what has changed meanwhile
        attempt = 0;
        await this.#read(body);
      } catch {
        // The connection was lost, or what is followed has changed: the next attempt continues.
      }
      attempt = this.#changed ? 0 : attempt + 1;
      if (!this.#changed && this.positions()) this.state.value = "lost";
    }
    this.#runs = false;
    this.state.value = "idle";
  }

  /** @param {ReadableStream<Uint8Array>} body */
  async #read(body) {
    const [reader, decoder, parser, abort] = [body.getReader(), new TextDecoder(), new EventParser(), this.#abort];
    try {
      for (;;) {
        const silent = setTimeout(() => abort.abort(), SILENCE);
        const { done, value } = await reader.read().finally(() => clearTimeout(silent));
        if (done || abort.signal.aborted) return;
        for (const event of parser.push(decoder.decode(value, { stream: true }))) this.#tell(event);
      }
    } finally {
      reader.cancel().catch(() => {});
    }
  }

  /** @param {ServerEvent} told */
  #tell({ event, id, data }) {
    const heard = parse(data);
    this.#newest = id.match(/^\*:([^,]*)/)?.[1] ?? this.#newest;
    const isNew = event === "session";
    if (isNew || event === "changed") for (const one of [...this.#observers]) one.session(heard, isNew);
    if (event === "listening" || event === "missed") for (const one of [...this.#observers]) one.listening();
    if (event === "entry" || event === "end") {
      for (const one of [...this.#followers]) if (one.id === heard.session) this.#tellFollower(one, event, heard);
    }
  }

  /**
   * @param {Follower & {id: string, after: number}} one
   * @param {string} event
   * @param {any} heard
   */
  #tellFollower(one, event, heard) {
    if (event === "end") {
      this.#followers.delete(one);
      one.end?.(heard);
    } else if (heard.entry.revision > one.after) {
      one.after = heard.entry.revision;
      one.entry(heard.entry);
    }
  }
}

/** @type {Map<string, Stream>} */
const streams = new Map();
const opened = signal(/** @type {Stream[]} */ ([]));

/**
 * This tab's stream of a store: one connection for all screens.
 * @param {string} base "" for the server's store, or `/runs/RUN` for that of a run
 */
export function streamOf(base) {
  const found = streams.get(base);
  if (found) return found;
  const made = new Stream(async (sessions, abort) => {
    const { body } = await open(address(`${base}/stream`, { sessions }), { signal: abort });
    return /** @type {ReadableStream<Uint8Array>} */ (body);
  });
  streams.set(base, made);
  opened.value = [...streams.values()];
  return made;
}

/** How all streams of this tab are: the state of the worst one. */
export const connection = computed(() => {
  const states = opened.value.map(({ state }) => state.value);
  return ["lost", "connecting", "live"].find((state) => states.includes(state)) ?? "idle";
});

/** The stream of the server's own store. */
export const stream = streamOf("");

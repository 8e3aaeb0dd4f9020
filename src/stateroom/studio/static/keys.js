/** Keys of the page: screens bind them with a description, and `?` lists those that work now. */
import { Dialog } from "./dialog.js";
import { html, signal, useEffect, useRef } from "./html.js";

/**
 * A sequence of keys, such as `j`, `Ctrl+Enter` or `g # Enter`, where `#` is a number that `run` gets.
 * @typedef {object} Binding
 * @property {string} keys
 * @property {string} does a description, such as "Next entry"
 * @property {((number: number) => void) | null} run null if an element handles it while it has the focus
 */

/** @typedef {{title: string, bindings: Binding[]}} Group */

const PATIENCE = 2000; // milliseconds between two keys of a sequence

/** Groups that are bound now; of two with the same keys the later one counts. */
export const groups = signal(/** @type {Group[]} */ ([]));

/** Whether the list of keys is open. */
export const helping = signal(false);

/** Finds the binding that the keys pressed so far complete. */
export class Sequence {
  /** @type {string[]} */
  #pressed = [];
  #last = 0;

  /** Whether a sequence has begun. */
  get isOpen() {
    return this.#pressed.length > 0;
  }

  /**
   * @param {string} key
   * @param {Binding[]} bindings
   * @param {number} now milliseconds
   * @returns {(() => void) | "part" | null} what to run, or whether this may become a sequence
   */
  press(key, bindings, now) {
    if (now - this.#last > PATIENCE) this.#pressed = [];
    this.#last = now;
    const isDigit = /^\d$/.test(key);
    const last = this.#pressed.at(-1) ?? "";
    const tries = [[...this.#pressed, key], [key]];
    if (isDigit && /^\d+$/.test(last)) tries.unshift([...this.#pressed.slice(0, -1), last + key]);
    for (const tried of tries) {
      const found = this.#find(tried, bindings);
      if (found) return found;
    }
    this.#pressed = [];
    return null;
  }

  /**
   * @param {string[]} tried
   * @param {Binding[]} bindings
   */
  #find(tried, bindings) {
    const fits = bindings.filter(({ keys, run }) => {
      const wanted = keys.split(" ");
      return run && tried.every((key, index) => wanted[index] === key || (wanted[index] === "#" && /^\d+$/.test(key)));
    });
    const whole = fits.findLast(({ keys }) => keys.split(" ").length === tried.length);
    this.#pressed = whole || !fits.length ? [] : tried;
    if (whole) return () => whole.run?.(Number(tried.find((key) => /^\d+$/.test(key))));
    return fits.length ? /** @type {const} */ ("part") : null;
  }
}

/**
 * The name of a key with its modifiers, as in bindings.
 * @param {Pick<KeyboardEvent, "key" | "ctrlKey" | "metaKey" | "altKey">} event
 */
export function nameOf(event) {
  return `${event.ctrlKey || event.metaKey ? "Ctrl+" : ""}${event.altKey ? "Alt+" : ""}${event.key}`;
}

/**
 * Whether a key belongs to the element that has the focus: text in a field, Enter on a button if it ends no sequence.
 * @param {Element} target
 * @param {string} key
 * @param {boolean} isOpen whether a sequence has begun
 */
function isTaken(target, key, isOpen) {
  if (key.startsWith("Ctrl+")) return false;
  if (target.closest("input, textarea, select, [contenteditable]")) return true;
  return !isOpen && /^(Enter| )$/.test(key) && target.closest("button, a, summary") !== null;
}

/** Listen to the keyboard, once for the page. */
export function listen() {
  const sequence = new Sequence();
  document.addEventListener("keydown", (event) => {
    const key = nameOf(event);
    const target = event.target instanceof Element ? event.target : document.body;
    if (event.defaultPrevented || isTaken(target, key, sequence.isOpen) || document.querySelector("dialog[open]"))
      return;
    const bindings = groups.value.flatMap((group) => group.bindings);
    const found = sequence.press(key, bindings, event.timeStamp);
    if (!found) return;
    event.preventDefault();
    if (found !== "part") found();
  });
}

/**
 * Bind keys while a component is shown: `useKeys("Timeline", { j: ["Next entry", next] })`. A key without a function is
 * only listed: an element handles it while it has the focus.
 * @param {string} title
 * @param {Record<string, [does: string, run?: (number: number) => void]>} map
 */
export function useKeys(title, map) {
  const newest = useRef(map);
  newest.current = map;
  const names = Object.keys(map).join("\n");
  useEffect(() => {
    const bindings = Object.entries(map).map(([keys, [does, run]]) => ({
      keys,
      does,
      run: run ? (/** @type {number} */ number) => newest.current[keys][1]?.(number) : null,
    }));
    const group = { title, bindings };
    groups.value = [...groups.value, group];
    return () => {
      groups.value = groups.value.filter((other) => other !== group);
    };
  }, [title, names]);
}

const SHOWN = /** @type {Record<string, string>} */ ({ ArrowLeft: "←", ArrowRight: "→" });

/** The list of keys that work now. */
export function Help() {
  if (!helping.value) return null;
  const keycaps = (/** @type {string} */ keys) =>
    keys.split(" ").map((key) => (key === "#" ? html`<var>number</var> ` : html`<kbd>${SHOWN[key] ?? key}</kbd> `));
  return html`
    <${Dialog} title="Keys" onClose=${() => (helping.value = false)}>
      ${groups.value.map(
        ({ title, bindings }) =>
          bindings.length > 0 &&
          html`<section class="keys">
            <h3>${title}</h3>
            <dl>
              ${bindings.map(({ keys, does }) => html`<div><dt>${keycaps(keys)}</dt><dd>${does}</dd></div>`)}
            </dl>
          </section>`,
      )}
    <//>
  `;
}

/**
 * Keys for the one list of a screen, also where it has not the focus, and others.
 * @template T
 * @param {string} title
 * @param {string} one what a row is
 * @param {import("./source.js").Source<T>} source
 * @param {import("./html.js").Signal<number>} active
 * @param {(row: T) => void} open
 * @param {Record<string, [string, (number: number) => void]>} [others]
 */
export function useListKeys(title, one, source, active, open, others = {}) {
  const move = (/** @type {number} */ by) => () => {
    active.value = Math.max(0, Math.min(source.size.value - 1, active.value + by));
  };
  const enter = () => {
    const row = source.at(active.value);
    if (row !== undefined) open(row);
  };
  useKeys(title, {
    j: [`Next ${one}`, move(1)],
    k: [`Previous ${one}`, move(-1)],
    Enter: [`Open the ${one}`, enter],
    ...others,
  });
}

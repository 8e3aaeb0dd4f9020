/** The URL as signals. It holds the whole view: a reload shows the same. */
import { computed, html, signal, useEffect } from "./html.js";
import { visible } from "./text.js";

const BASE = "/studio";
const QUIET = 200; // browsers refuse many changes of the URL within a short time

/** The URL below `/studio`: a path, and a query with its `?`. */
const here = signal(
  globalThis.location ? { path: pathOf(location.pathname), query: location.search } : { path: "/", query: "" },
);

/** The path below `/studio`, such as `/sessions/abc`. */
export const path = computed(() => here.value.path);

/** The query's parameters. */
export const query = computed(() => new URLSearchParams(here.value.query));

/** @param {string} pathname */
function pathOf(pathname) {
  return pathname.slice(BASE.length) || "/";
}

/** @type {ReturnType<typeof setTimeout> | undefined} */
let late;

/** Write the URL that is late. */
function flush() {
  clearTimeout(late);
  late = undefined;
  history.replaceState(null, "", BASE + here.value.path + here.value.query);
}

globalThis.addEventListener?.("popstate", () => {
  clearTimeout(late);
  late = undefined;
  here.value = { path: pathOf(location.pathname), query: location.search };
});

/**
 * Show another view: `navigate("/sessions/abc?at=5")`.
 * @param {string} to below `/studio`
 * @param {{replace?: boolean}} [how] with `replace`, the view before is not in the history
 */
export function navigate(to, { replace = false } = {}) {
  const [, nextPath, nextQuery] = /** @type {RegExpMatchArray} */ (to.match(/^([^?]*)(.*)$/s));
  const next = { path: nextPath, query: nextQuery === "?" ? "" : nextQuery };
  if (next.path === here.value.path && next.query === here.value.query) return;
  if (!replace) {
    if (late) flush();
    history.pushState(null, "", BASE + next.path + next.query);
  }
  here.value = next;
  if (!replace || late) return;
  flush(); // a reload right after it shows the same; what follows soon is written together
  late = setTimeout(flush, QUIET);
}

/**
 * A view's address below `/studio`; parameters without a value are left out.
 * @param {string} to a path, whose parts are encoded by the caller
 * @param {Record<string, string | number | null | undefined>} [parameters]
 */
export function view(to, parameters = {}) {
  const given = Object.entries(parameters).filter(([, value]) => value !== null && value !== undefined && value !== "");
  const text = new URLSearchParams(given.map(([name, value]) => [name, String(value)])).toString();
  return text ? `${to}?${text}` : to;
}

/**
 * A parameter of the query as a signal to read and write. Its fallback is not in the URL.
 * @param {string} name
 * @param {string} [fallback]
 */
export function parameter(name, fallback = "") {
  const current = computed(() => query.value.get(name) ?? fallback);
  const write = (/** @type {string} */ value, /** @type {boolean} */ replace) => {
    const all = new URLSearchParams(query.peek());
    if (value === fallback) all.delete(name);
    else all.set(name, value);
    navigate(`${path.peek()}${all.size ? `?${all}` : ""}`, { replace });
  };
  return {
    get value() {
      return current.value;
    },
    /** Change it in place, as while one types or drags. */
    set value(value) {
      write(value, true);
    },
    /**
     * Change it as a new view, which Back leaves.
     * @param {string} value
     */
    push(value) {
      write(value, false);
    },
  };
}

/**
 * The named parts of a path, or null if it does not fit: `match("/sessions/:id", "/sessions/abc")`.
 * @param {string} pattern
 * @param {string} actual
 * @returns {Record<string, string> | null}
 */
export function match(pattern, actual) {
  const [wanted, given] = [pattern.split("/"), actual.replace(/(.)\/$/, "$1").split("/")];
  if (wanted.length !== given.length) return null;
  /** @type {Record<string, string>} */
  const found = {};
  for (const [index, part] of wanted.entries()) {
    if (part.startsWith(":")) found[part.slice(1)] = decoded(given[index]);
    else if (part !== given[index]) return null;
  }
  return found;
}

/** @param {string} part */
function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

/**
 * A link to a view. Other properties go to its `a`.
 * @param {{to: string, children?: import("./html.js").Children, [name: string]: any}} properties
 */
export function Link({ to, children, ...others }) {
  const follow = (/** @type {MouseEvent} */ event) => {
    if (event.button || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
    event.preventDefault();
    navigate(to);
  };
  return html`<a ...${others} href=${BASE + to} onClick=${follow}>${children}</a>`;
}

/**
 * Name the view in the browser's tab.
 * @param {string} title
 */
export function useTitle(title) {
  useEffect(() => {
    document.title = `${visible(title)} · Stateroom Studio`;
  }, [title]);
}

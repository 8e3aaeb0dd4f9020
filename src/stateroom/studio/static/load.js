/** What a screen reads from the server, and what it shows when that fails. */
import { ApiError, get } from "./api.js";
import { Component, html, useEffect, useMemo, useSignal } from "./html.js";
import { visible } from "./text.js";

const PAUSE = 1000;
const REST = 10; // times as long as a read took, so that a slow one does not keep the server busy

/**
 * Read something whenever `needs` change. The answer of an older read is dropped, and its request stopped.
 * `value` keeps the last answer while the next one is on its way, so that the page does not flicker.
 * @template T
 * @param {(abort: AbortSignal) => Promise<T>} read
 * @param {unknown[]} needs
 */
export function useLoad(read, needs) {
  const value = useSignal(/** @type {T | undefined} */ (undefined));
  const error = useSignal(/** @type {Error | null} */ (null));
  const loading = useSignal(true);
  const again = useSignal(0);
  useEffect(() => {
    const abort = new AbortController();
    loading.value = true;
    read(abort.signal)
      .then(
        (found) => {
          if (abort.signal.aborted) return;
          value.value = found;
          error.value = null;
        },
        (problem) => {
          if (!abort.signal.aborted) error.value = problem;
        },
      )
      .finally(() => {
        if (!abort.signal.aborted) loading.value = false;
      });
    return () => abort.abort();
  }, [...needs, again.value]);
  const retry = useMemo(() => () => void again.value++, []);
  return { value, error, loading, retry };
}

/** Statuses of refusals that do not last. */
const PASSING = [408, 429];

/**
 * Whether the server refuses a request, and would refuse it again.
 * @param {Error | null} error
 */
const isRefused = (error) =>
  error instanceof ApiError && error.status >= 400 && error.status < 500 && !PASSING.includes(error.status);

/**
 * Read a path, and again while the page is visible, until the server refuses it. The `version` of the last answer is
 * sent as `since`: the server answers 304 until there is another one.
 * @param {string} path
 * @param {import("./api.js").Query} [query]
 * @param {(value: any) => boolean} [goesOn] whether to read it again after an answer
 * @param {unknown[]} [needs] it is read at once when they change
 */
export function usePoll(path, query = {}, goesOn = () => true, needs = []) {
  const value = useSignal(/** @type {any} */ (undefined));
  const error = useSignal(/** @type {Error | null} */ (null));
  const again = useSignal(0);
  const asked = JSON.stringify([path, query]);
  const answered = useSignal("");
  useEffect(() => {
    const abort = new AbortController();
    /** @type {ReturnType<typeof setTimeout> | undefined} */
    let timer;
    const read = async () => {
      clearTimeout(timer);
      const started = performance.now();
      const since = answered.peek() === asked ? value.peek()?.version : undefined;
      const found = await get(path, { ...query, since }, abort.signal).catch((problem) => problem);
      if (abort.signal.aborted) return;
      const failed = found instanceof Error && !(found instanceof ApiError && found.status === 304);
      error.value = failed ? found : null;
      if (!(found instanceof Error)) {
        value.value = found;
        answered.value = asked;
      }
      const rest = Math.max(PAUSE, REST * (performance.now() - started));
      if (isDue()) timer = setTimeout(read, rest);
    };
    const isDue = () => !document.hidden && !isRefused(error.peek()) && goesOn(value.peek());
    const look = () => isDue() && read();
    document.addEventListener("visibilitychange", look);
    read();
    return () => {
      abort.abort();
      clearTimeout(timer);
      document.removeEventListener("visibilitychange", look);
    };
  }, [asked, again.value, ...needs]);
  const retry = useMemo(() => () => void again.value++, []);
  return { value, error, retry };
}

/**
 * What went wrong, in the server's words, and a way to try again.
 * @param {{error: Error, retry?: () => void}} properties
 */
export function Problem({ error, retry }) {
  const code = error instanceof ApiError ? error.code : "";
  return html`
    <div class="problem" role="alert">
      <p>${visible(error.message)}${code && html` <code>${visible(code)}</code>`}</p>
      ${retry && html`<button type="button" onClick=${retry}>Retry</button>`}
    </div>
  `;
}

/** Catches what a screen throws while it is shown. */
export class Boundary extends Component {
  /** @type {{error: Error | null}} */
  state = { error: null };

  /** @param {Error} error */
  static getDerivedStateFromError(error) {
    return { error };
  }

  render() {
    if (!this.state.error) return this.props.children;
    return html`<${Problem} error=${this.state.error} retry=${() => this.setState({ error: null })} />`;
  }
}

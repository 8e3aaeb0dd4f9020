/** Differences of two states, as the API gives them: places, and what was and is there. */
import { html, useSignal } from "./html.js";
import { pathOf } from "./places.js";
import { number, visible, wordDifference } from "./text.js";
import { textOf, Value } from "./value.js";

/** @typedef {{place: import("./places.js").Place, kind: "changed" | "new" | "gone", before: any, after: any}} Change */

const PAGE = 200;
const LONG = 40; // characters of a text that is compared by words

/** @param {{changes: Change[]}} properties */
export function Differences({ changes }) {
  const most = useSignal(PAGE);
  const left = changes.length - most.value;
  return html`
    <ol class="differences">
      ${changes.slice(0, most.value).map(
        (change) => html`
          <li class=${change.kind} key=${JSON.stringify(change.place)}>
            <code>${visible(pathOf(change.place)) || "state"}</code> <span class=${`badge ${change.kind}`}>${change.kind}</span>
            <${Difference} ...${change} />
          </li>
        `,
      )}
    </ol>
    ${left > 0 && html`<button type="button" onClick=${() => (most.value += PAGE)}>Show more of ${number(left)}</button>`}
  `;
}

/** @param {Change} change */
function Difference({ kind, before, after }) {
  const isText = kind === "changed" && typeof before === "string" && typeof after === "string";
  if (isText && before.length + after.length > 2 * LONG)
    return html`<pre><${Words} before=${before} after=${after} /></pre>`;
  return html`
    ${kind !== "new" && html`<del><${Value} value=${written(before)} /></del>`}
    ${kind !== "gone" && html`<ins><${Value} value=${written(after)} /></ins>`}
  `;
}

/**
 * A short text has its quotation marks, so that it is not taken for a number.
 * @param {unknown} value
 */
const written = (value) => (typeof value === "string" && value.length <= LONG ? JSON.stringify(value) : textOf(value));

/** @param {{before: string, after: string}} properties */
function Words({ before, after }) {
  const tags = { same: "span", gone: "del", new: "ins" };
  return wordDifference(before, after).map(({ kind, text }) => html`<${tags[kind]}>${visible(text)}<//>`);
}

/** Edit and fork: a person changes a copy of the state, and the server gets the list of changes. */
import { ApiError, get, named, post } from "./api.js";
import { Dialog } from "./dialog.js";
import { Form } from "./form.js";
import { html, useRef, useSignal } from "./html.js";
import { Problem, useLoad } from "./load.js";

/** Characters of a state as JSON above which a form of all of it would be too slow. */
const LARGE = 30_000;

/** @typedef {import("./places.js").Place} Place */
/** @typedef {{place: Place, value: unknown} | {place: Place, gone: true}} Change */

/** @param {any} value */
const isObject = (value) => value !== null && typeof value === "object" && !Array.isArray(value);

/**
 * The changes that make one state from another, each as deep as it can be. A list whose length or plain items differ is
 * set as a whole.
 * @param {any} old
 * @param {any} now
 * @param {Place} [place]
 * @returns {Change[]}
 */
export function changesBetween(old, now, place = []) {
  if (JSON.stringify(old) === JSON.stringify(now)) return [];
  const areRecords = [old, now].every((one) => Array.isArray(one) && one.every(isObject)) && old.length === now.length;
  if (!areRecords && !(isObject(old) && isObject(now))) return [{ place, value: now }];
  /** @type {Change[]} */
  const changes = [];
  for (const key of areRecords ? old.keys() : Object.keys({ ...old, ...now })) {
    const below = [...place, key];
    if (!Object.hasOwn(now, key)) changes.push({ place: below, gone: true });
    else if (!Object.hasOwn(old, key)) changes.push({ place: below, value: now[key] });
    else changes.push(...changesBetween(old[key], now[key], below));
  }
  return changes;
}

/**
 * The same error, at the fields of the dialog's form: that of the state is below `state`.
 * @param {any} error
 */
function below(error) {
  const { status, code, message, fields } = error;
  const moved = Object.entries(fields ?? {}).map(([name, said]) => [name === "state" ? name : `state.${name}`, said]);
  return new ApiError(status, { code, message, fields: Object.fromEntries(moved) });
}

/**
 * @typedef {object} EditProperties
 * @property {string} here the session's path in the API
 * @property {number} at
 * @property {import("./schema.js").Schema | null} [schema] of the state
 * @property {(fork: string) => void} onFork
 * @property {() => void} onClose
 */

/** @param {EditProperties} properties */
export function EditDialog({ here, at, schema, onFork, onClose }) {
  const { value, error, retry } = useLoad((abort) => get(`${here}/state`, { at }, abort), []);
  const state = value.value?.state;
  return html`
    <${Dialog} title=${`Edit revision ${at} and fork`} wide onClose=${onClose}>
      <p class="muted">The session does not change. Your changes go into a new fork.</p>
      ${error.value && html`<${Problem} error=${error.value} retry=${retry} />`}
      ${value.value && html`<${Editor} here=${here} at=${at} schema=${schema} state=${state} onFork=${onFork} />`}
    <//>
  `;
}

/** @param {Omit<EditProperties, "onClose"> & {state: any}} properties */
function Editor({ here, at, schema, state, onFork }) {
  const isLarge = JSON.stringify(state).length > LARGE;
  const isJson = useSignal(!schema || isLarge);
  const written = useRef(isLarge ? { changes: [] } : { state });
  const { $defs, ...own } = schema ?? {};
  const reason = { type: "string", description: "Reason, for the log." };
  const large = {
    description: 'The state is large. List your changes: [{"place": ["orders", "7", "price"], "value": 5}]',
  };
  const properties = isLarge ? { changes: large, reason } : { state: isJson.value ? {} : own, reason };
  const send = async (/** @type {any} */ data) => {
    const changes = data.changes ?? changesBetween(state, data.state);
    if (!changes.length) throw new Error("No changes yet. To copy the session unchanged, use Fork.");
    const edit = { changes, reason: data.reason ?? "", by: await named() };
    const made = await post(`${here}/fork`, { at, edit }).catch((error) => Promise.reject(below(error)));
    onFork(made.sessions[0].id);
  };
  return html`
    ${
      schema &&
      !isLarge &&
      html`<div class="bar">
        ${[false, true].map(
          (one) => html`<button type="button" class="chip" aria-pressed=${isJson.value === one}
            onClick=${() => (isJson.value = one)}>${one ? "JSON" : "Form"}</button>`,
        )}
      </div>`
    }
    <${Form} key=${isJson.value} schema=${{ type: "object", properties, $defs, required: ["state", "changes"] }}
      value=${written.current} submit="Fork with these changes" onSubmit=${send}
      onChange=${(/** @type {any} */ data) => (written.current = data)} />
  `;
}

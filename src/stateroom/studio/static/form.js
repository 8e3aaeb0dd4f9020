/** A form from a JSON schema, as pydantic writes it. What it does not know is a field of JSON text. */
import { html, useId, useRef, useSignal } from "./html.js";
import { Input } from "./input.js";
import { errorAt, Fault, faultsIn, initial, kindOf, placed, put, resolve } from "./schema.js";
import { visible } from "./text.js";

/** @typedef {import("./schema.js").Schema} Schema */
/** @typedef {import("./schema.js").Place} Place */

/**
 * A form. `onSubmit` gets plain data; what it throws (an `ApiError`) is shown at the fields that it names.
 * @param {{schema: Schema, value?: any, submit?: string, onSubmit: (data: any) => Promise<unknown>,
 *   onChange?: (data: any) => void}} properties
 */
export function Form({ schema, value, submit = "Send", onSubmit, onChange }) {
  const data = useSignal(value ?? initial(schema, schema));
  const errors = useSignal(/** @type {Map<string, string>} */ (new Map()));
  const problem = useSignal("");
  const busy = useSignal(false);
  const send = async (/** @type {Event} */ event) => {
    event.preventDefault();
    errors.value = faultsIn(data.value);
    if (busy.value || errors.value.size) return;
    busy.value = true;
    problem.value = "";
    try {
      await onSubmit(data.value);
    } catch (error) {
      const { message, fields = {} } = /** @type {import("./api.js").ApiError} */ (error);
      errors.value = placed(fields);
      problem.value = message;
    }
    busy.value = false;
  };
  const change = (/** @type {Place} */ place, /** @type {unknown} */ next) => {
    data.value = put(data.value, place, next);
    onChange?.(data.value);
  };
  const once = (/** @type {MouseEvent} */ event) => event.detail > 1 && event.preventDefault(); // a double click
  return html`
    <form class="schema" novalidate onSubmit=${send}>
      <${Field} given=${schema} root=${schema} place=${[]} value=${data.value} errors=${errors.value}
        change=${change} />
      ${problem.value && html`<p class="error" role="alert">${visible(problem.value)}</p>`}
      <button type="submit" class="primary" disabled=${busy.value} onClick=${once}>${submit}</button>
    </form>
  `;
}

/**
 * @typedef {object} FieldProperties
 * @property {Schema} given
 * @property {Schema} root
 * @property {Place} place
 * @property {any} value
 * @property {Map<string, string>} errors
 * @property {(place: Place, value: unknown) => void} change
 * @property {string} [label]
 * @property {boolean} [required]
 * @property {boolean} [isItem] of a list or map, which stays when it is emptied
 */

/** @param {FieldProperties} properties */
function Field({ given, root, place, value, errors, change, label, required = true, isItem = false }) {
  const id = useId();
  const { schema, nullable } = resolve(given, root);
  const title = label ?? schema.title ?? "";
  const shared = { root, errors, change };
  const known = kindOf(schema);
  const isNested = ["object", "array", "map"].includes(known);
  if (known === "object" && !nullable) {
    return html`<${Group} ...${shared} given=${schema} label=${title} place=${place} value=${value} />`;
  }
  if (isNested && !nullable) {
    return html`<${Items} ...${shared} given=${schema} label=${title} place=${place} value=${value} />`;
  }
  const error = errorAt(errors, place, true);
  const needed = /^(number|integer)$/.test(known) ? "a number is needed" : "a value is needed";
  const none = nullable ? null : isItem ? new Fault("", needed) : undefined;
  const write = (/** @type {unknown} */ next) => change(place, next ?? none);
  return html`
    <div class="field">
      <label for=${id}>${visible(title)}${required ? "" : ", optional"}</label>
      <${Input} id=${id} kind=${isNested ? "json" : known} schema=${schema} nullable=${nullable || !required}
        value=${value} invalid=${error !== ""} change=${write} />
      ${schema.description && html`<p class="muted">${visible(schema.description)}</p>`}
      ${error && html`<p class="error" id=${`${id}-error`}>${visible(error)}</p>`}
    </div>
  `;
}

/** @param {FieldProperties} properties */
function Group({ given, place, value, label, ...shared }) {
  const required = new Set(given.required ?? []);
  const fields = Object.entries(given.properties).map(
    ([name, one]) => html`<${Field} ...${shared} key=${name} given=${one} label=${name} required=${required.has(name)}
      place=${[...place, name]} value=${value?.[name]} />`,
  );
  if (!place.length) return fields;
  const error = errorAt(shared.errors, place, false);
  return html`
    <fieldset>
      <legend>${visible(label)}</legend>
      ${fields}
      ${error && html`<p class="error">${visible(error)}</p>`}
    </fieldset>
  `;
}

/** @param {FieldProperties} properties */
function Items({ given, root, place, value, errors, change, label }) {
  const fresh = useSignal("");
  const keys = useRef(/** @type {{next: number, all: number[]}} */ ({ next: 0, all: [] })); // of a list's items
  const isMap = given.type === "object";
  const item = isMap ? given.additionalProperties : given.items;
  const entries = isMap ? Object.entries(value ?? {}) : [...(value ?? []).entries()];
  while (!isMap && keys.current.all.length < entries.length) keys.current.all.push(keys.current.next++);
  const remove = (/** @type {string | number} */ key) => () => {
    keys.current.all.splice(Number(key), 1);
    change([...place, key], undefined);
  };
  const add = () => {
    change([...place, isMap ? fresh.value : entries.length], initial(item, root) ?? null);
    fresh.value = "";
  };
  const error = errorAt(errors, place, false);
  return html`
    <fieldset>
      <legend>${visible(label)}</legend>
      ${entries.map(
        (/** @type {[string | number, any]} */ [key, one]) => html`
          <div class="item" key=${isMap ? key : keys.current.all[Number(key)]}>
            <${Field} given=${item} root=${root} place=${[...place, key]} value=${one} errors=${errors} change=${change}
              label=${String(key)} isItem />
            <button type="button" class="quiet" aria-label=${visible(`Remove ${key}`)}
              onClick=${remove(key)}>✕</button>
          </div>
        `,
      )}
      <div class="bar">
        ${
          isMap &&
          html`<input aria-label="New key" placeholder="New key" value=${fresh.value}
            onInput=${(/** @type {any} */ event) => (fresh.value = event.target.value)} />`
        }
        <button type="button" disabled=${isMap && !fresh.value} onClick=${add}>Add</button>
      </div>
      ${error && html`<p class="error">${visible(error)}</p>`}
    </fieldset>
  `;
}

/** One field of a form, by the kind of its schema. */
import { html, useSignal } from "./html.js";
import { integer, parse } from "./json.js";
import { Fault } from "./schema.js";
import { visible } from "./text.js";

/**
 * @typedef {object} InputProperties
 * @property {string} id
 * @property {import("./schema.js").Kind} kind
 * @property {import("./schema.js").Schema} schema
 * @property {boolean} nullable whether it may be left empty
 * @property {any} value
 * @property {boolean} invalid
 * @property {(value: unknown) => void} change undefined for an empty field
 */

/** @param {InputProperties} properties */
export function Input({ id, kind, schema, nullable, value: given, invalid, change }) {
  const value = given instanceof Fault ? undefined : given;
  const shared = { id, "aria-invalid": invalid, "aria-describedby": invalid ? `${id}-error` : undefined };
  const typed = (/** @type {any} */ event) => event.target.value;
  const write = (/** @type {any} */ event) => change(typed(event) === "" && nullable ? undefined : typed(event));
  if (kind === "json") return html`<${JsonInput} shared=${shared} value=${given} change=${change} />`;
  if (kind === "enum" || (kind === "boolean" && nullable)) {
    const options = schema.enum ?? ("const" in schema ? [schema.const] : [true, false]);
    return html`<${Choice} ...${{ shared, options, nullable, value, change }} />`;
  }
  if (kind === "boolean") {
    return html`<input ...${shared} type="checkbox" checked=${value}
      onChange=${(/** @type {any} */ event) => change(event.target.checked)} />`;
  }
  if (kind === "number" || kind === "integer") {
    return html`<input ...${shared} type="number" step=${kind === "integer" ? "1" : "any"} min=${schema.minimum}
      max=${schema.maximum} value=${value ?? ""}
      onInput=${(/** @type {any} */ event) => change(typed(event) === "" ? undefined : (integer(typed(event)) ?? Number(typed(event))))} />`;
  }
  if (typeof value === "string" && (value.length > 80 || value.includes("\n"))) {
    return html`<textarea ...${shared} rows="4" value=${value} onInput=${write}></textarea>`;
  }
  return html`<input ...${shared} type=${kind === "date" ? "date" : "text"} value=${value ?? ""} onInput=${write} />`;
}

/** @param {Pick<InputProperties, "nullable" | "value" | "change"> & {shared: object, options: any[]}} properties */
function Choice({ shared, options, nullable, value, change }) {
  const at = options.indexOf(value);
  const choose = (/** @type {any} */ event) => change(options[Number(event.target.value)]);
  return html`
    <select ...${shared} value=${String(at)} onChange=${choose}>
      ${(nullable || at < 0) && html`<option value="-1"></option>`}
      ${options.map((option, index) => html`<option value=${String(index)}>${visible(option)}</option>`)}
    </select>
  `;
}

/** @param {{shared: object, value: unknown, change: (value: unknown) => void}} properties */
function JsonInput({ shared, value, change }) {
  const text = useSignal(
    value instanceof Fault ? value.text : value === undefined ? "" : JSON.stringify(value, null, 2),
  );
  const write = (/** @type {any} */ event) => {
    text.value = event.target.value;
    try {
      change(text.value.trim() === "" ? undefined : parse(text.value));
    } catch (error) {
      change(new Fault(text.value, `This is not JSON: ${/** @type {Error} */ (error).message}`));
    }
  };
  return html`<textarea ...${shared} class="data" rows="4" spellcheck=${false} value=${text.value}
    onInput=${write}></textarea>`;
}

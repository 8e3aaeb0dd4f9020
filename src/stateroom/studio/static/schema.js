/** JSON schemas as pydantic writes them: which field each gets, and the data behind a form. */

/** @typedef {Record<string, any>} Schema */
/** @typedef {(string | number)[]} Place */
/** @typedef {"string" | "number" | "integer" | "boolean" | "date" | "enum"} Simple */
/** @typedef {Simple | "array" | "object" | "map" | "json"} Kind */

/**
 * A schema without references, and whether null is allowed beside it.
 * @param {Schema} schema
 * @param {Schema} root the one with `$defs`
 * @returns {{schema: Schema, nullable: boolean}}
 */
export function resolve(schema, root) {
  if (schema.$ref) {
    const { $ref, ...own } = schema;
    return resolve({ ...root.$defs?.[$ref.split("/").at(-1)], ...own }, root);
  }
  const options = schema.anyOf ?? schema.oneOf ?? schema.allOf;
  const others = options?.filter((/** @type {Schema} */ option) => option.type !== "null");
  if (others?.length !== 1) return { schema, nullable: false };
  const { anyOf: _any, oneOf: _one, allOf: _all, ...own } = schema;
  const { schema: found, nullable } = resolve(others[0], root);
  return { schema: { ...found, ...own }, nullable: nullable || others.length < options.length };
}

/**
 * The kind of field that a schema without references gets.
 * @param {Schema} schema
 * @returns {Kind}
 */
export function kindOf(schema) {
  if (schema.enum || "const" in schema) return "enum";
  if (schema.type === "string") return schema.format === "date" ? "date" : "string";
  if (["number", "integer", "boolean"].includes(schema.type)) return schema.type;
  if (schema.type === "array" && schema.items && !schema.prefixItems) return "array";
  if (schema.type === "object" && schema.properties) return "object";
  if (schema.type === "object" && typeof schema.additionalProperties === "object") return "map";
  return "json";
}

/**
 * What a field has before somebody fills it in; undefined if it is to be filled in.
 * @param {Schema} given
 * @param {Schema} root
 * @returns {unknown}
 */
export function initial(given, root) {
  const { schema, nullable } = resolve(given, root);
  if ("default" in schema) return structuredClone(schema.default);
  if ("const" in schema) return schema.const;
  if (nullable) return null;
  const kind = kindOf(schema);
  if (kind === "object") {
    const fields = Object.entries(schema.properties).map(([name, one]) => [
      name,
      initial(/** @type {Schema} */ (one), root),
    ]);
    return Object.fromEntries(fields.filter(([, value]) => value !== undefined));
  }
  return { array: [], map: {}, boolean: false, string: "" }[/** @type {string} */ (kind)];
}

/** What is written in a field and is no value, in the value's place: it is shown, and keeps the form from being sent. */
export class Fault {
  /**
   * @param {string} text what is in the field
   * @param {string} message
   */
  constructor(text, message) {
    this.text = text;
    this.message = message;
  }

  toJSON() {
    return this.text;
  }
}

/**
 * The faults in the data of a form, by place.
 * @param {any} data
 * @param {Place} [place]
 * @returns {Map<string, string>}
 */
export function faultsIn(data, place = []) {
  if (data instanceof Fault) return new Map([[place.join("."), data.message]]);
  const inside = data !== null && typeof data === "object" ? Object.entries(data) : [];
  return new Map(inside.flatMap(([key, value]) => [...faultsIn(value, [...place, key])]));
}

/**
 * Data with another value at a place; undefined takes the place away.
 * @param {any} data
 * @param {Place} place
 * @param {unknown} value
 * @returns {any}
 */
export function put(data, [key, ...rest], value) {
  if (key === undefined) return value;
  const next = Array.isArray(data) ? [...data] : { ...data };
  const below = put(next[key], rest, value);
  if (below !== undefined) next[key] = below;
  else if (Array.isArray(next)) next.splice(Number(key), 1);
  else delete next[key];
  return next;
}

/**
 * The server's errors by the place of their field: `lines.0.price` and `lines[0].price` are the same.
 * @param {Record<string, string>} fields
 */
export function placed(fields) {
  return new Map(
    Object.entries(fields).map(([name, said]) => [name.replace(/\[["']?([^\]"']*)["']?\]/g, ".$1"), said]),
  );
}

/**
 * What is wrong at a place; with `deep`, also below it.
 * @param {Map<string, string>} errors
 * @param {Place} place
 * @param {boolean} deep
 */
export function errorAt(errors, place, deep) {
  const name = place.join(".");
  const found = [...errors].filter(([key]) => key === name || (deep && key.startsWith(`${name}.`)));
  return found.map(([key, said]) => (key === name ? said : `${key.slice(name.length + 1)}: ${said}`)).join("; ");
}

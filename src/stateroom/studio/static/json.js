/** JSON with exact integers: one that a number of JavaScript does not hold is a `bigint`. */

/**
 * The value in a JSON text.
 * @param {string} text
 * @returns {any}
 */
export function parse(text) {
  // A reviver takes several times as long, and few texts have a long integer.
  return /(?<![\d.])\d{16}/.test(text) ? JSON.parse(text, exact) : JSON.parse(text);
}

/**
 * @param {string} _key
 * @param {any} value
 * @param {{source?: string}} [context] how the value is written; older browsers do not tell
 */
function exact(_key, value, { source = "" } = {}) {
  return typeof value === "number" ? (integer(source) ?? value) : value;
}

/**
 * The integer in a text; undefined if something else is in it.
 * @param {string} text
 */
export function integer(text) {
  if (!/^-?\d+$/.test(text)) return undefined;
  return Number.isSafeInteger(Number(text)) ? Number(text) : BigInt(text);
}

// What becomes JSON anywhere in the page has its integers as they are.
/** @type {any} */ (BigInt.prototype).toJSON = function () {
  return /** @type {any} */ (JSON).rawJSON(String(this));
};

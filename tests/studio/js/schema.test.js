import assert from "node:assert/strict";
import { test } from "node:test";
import {
  errorAt,
  Fault,
  faultsIn,
  initial,
  kindOf,
  placed,
  put,
  resolve,
} from "../../../src/stateroom/studio/static/schema.js";

const ROOT = {
  type: "object",
  required: ["size", "line"],
  $defs: {
    Line: {
      type: "object",
      title: "Line",
      properties: { price: { type: "number" }, tags: { type: "array", items: { type: "string" } } },
    },
    Color: { type: "string", enum: ["red", "blue"] },
  },
  properties: {
    size: { type: "integer", minimum: 1 },
    line: { $ref: "#/$defs/Line", description: "own" },
    color: { anyOf: [{ $ref: "#/$defs/Color" }, { type: "null" }], default: null },
    open: { type: "boolean" },
    day: { type: "string", format: "date" },
    prices: { type: "object", additionalProperties: { type: "number" } },
    either: { anyOf: [{ type: "string" }, { type: "integer" }] },
    kind: { const: "order" },
  },
};

test("references and null beside a type are resolved", () => {
  const line = resolve(ROOT.properties.line, ROOT);
  assert.deepEqual([line.schema.title, line.schema.description, line.nullable], ["Line", "own", false]);
  const color = resolve(ROOT.properties.color, ROOT);
  assert.deepEqual([color.schema.enum, color.nullable], [["red", "blue"], true]);
});

test("each schema has its kind of field, and JSON is the last resort", () => {
  const kinds = Object.values(ROOT.properties).map((one) => kindOf(resolve(one, ROOT).schema));
  assert.deepEqual(kinds, ["integer", "object", "enum", "boolean", "date", "map", "json", "enum"]);
  assert.deepEqual([kindOf({}), kindOf({ type: "array", prefixItems: [], items: false })], ["json", "json"]);
});

test("a form begins with defaults, and leaves out what must be filled in", () => {
  assert.deepEqual(initial(ROOT, ROOT), {
    line: { tags: [] },
    color: null,
    open: false,
    prices: {},
    kind: "order",
  });
});

test("a field changes its own place only", () => {
  const data = { a: [{ b: 1 }, { b: 2 }], c: {} };
  assert.deepEqual(put(data, ["a", 1, "b"], 3), { a: [{ b: 1 }, { b: 3 }], c: {} });
  assert.deepEqual(put(data, ["a", 0], undefined), { a: [{ b: 2 }], c: {} });
  assert.deepEqual(put(data, ["c"], undefined), { a: data.a });
  assert.deepEqual(put(undefined, ["x", "y"], 1), { x: { y: 1 } });
  assert.deepEqual(data, { a: [{ b: 1 }, { b: 2 }], c: {} });
});

test("an error of the server is at its field, however its place is written", () => {
  const errors = placed({ "lines[0].price": "too low", "prices['a']": "no", "other.deep": "bad" });
  assert.equal(errorAt(errors, ["lines", 0, "price"], false), "too low");
  assert.equal(errorAt(errors, ["prices", "a"], false), "no");
  assert.equal(errorAt(errors, ["other"], false), "");
  assert.equal(errorAt(errors, ["other"], true), "deep: bad");
});

test("what is no value keeps its place and its text until it is removed", () => {
  const data = put({ prices: [1, 2, 3] }, ["prices", 1], new Fault("", "a number is needed"));
  assert.deepEqual([...faultsIn(data)], [["prices.1", "a number is needed"]]);
  const shorter = put(data, ["prices", 0], undefined);
  assert.deepEqual([...faultsIn(shorter)], [["prices.0", "a number is needed"]]);
  assert.equal(faultsIn(put(shorter, ["prices", 0], undefined)).size, 0);
});

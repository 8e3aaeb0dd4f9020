import assert from "node:assert/strict";
import { test } from "node:test";
import { integer, parse } from "../../../src/stateroom/studio/static/json.js";

test("an integer is exact, however long it is", () => {
  assert.deepEqual([integer("42"), integer("-9007199254740993")], [42, -9007199254740993n]);
  assert.deepEqual([integer("1.5"), integer("1e3"), integer("")], [undefined, undefined, undefined]);
});

test("other JSON is as ever", () => {
  const text = '{"a": [0.1234567890123456789, "12345678901234567890", null], "b": 1e400}';
  assert.deepEqual(parse(text), JSON.parse(text));
  assert.throws(() => parse("{1234567890123456"), SyntaxError);
});

import assert from "node:assert/strict";
import { test } from "node:test";
import { above, brief, find, idOf, pathOf, rowsOf } from "../../../src/stateroom/studio/static/places.js";

const STATE = { orders: { "o-1": { lines: [{ price: 3, note: "Blue" }] } }, empty: [], name: "ann" };

test("only what is open has rows", () => {
  assert.deepEqual(
    rowsOf(STATE, new Set()).map(({ place, open }) => [place.at(-1), open]),
    [
      ["orders", false],
      ["empty", null],
      ["name", null],
    ],
  );
  const opened = above([["orders", "o-1", "lines", 0]]);
  assert.deepEqual(
    rowsOf(STATE, opened).map(({ place, position, siblings }) => [place.length, position, siblings]),
    [
      [1, 1, 3],
      [2, 1, 1],
      [3, 1, 1],
      [4, 1, 1],
      [1, 2, 3],
      [1, 3, 3],
    ],
  );
});

test("a search finds keys and values at any depth, in order", () => {
  assert.deepEqual(find(STATE, "blue"), [["orders", "o-1", "lines", 0, "note"]]);
  assert.deepEqual(
    find(STATE, "N").map((place) => place.at(-1)),
    ["lines", "note", "name"],
  );
  assert.deepEqual(find(STATE, ""), []);
  assert.equal(
    find(
      Array.from({ length: 5000 }, () => "x"),
      "x",
    ).length,
    1000,
  );
});

test("what is above a place is open when the place is shown", () => {
  assert.deepEqual([...above([["a", 0, "b"]])], [idOf(["a"]), idOf(["a", 0])]);
});

test("a place is written as in Python", () => {
  assert.equal(pathOf(["orders", "o-1", "lines", 0, "price"]), 'orders["o-1"].lines[0].price');
  assert.equal(pathOf([0, "a"]), "[0].a");
});

test("a value fits in a row", () => {
  assert.deepEqual(
    [brief([1]), brief({}), brief({ a: 1, b: 2 }), brief(null), brief("a\nb")],
    ["[1 item]", "{}", "{2 keys}", "null", '"a\\nb"'],
  );
  assert(brief("x".repeat(10_000)).length < 200);
});

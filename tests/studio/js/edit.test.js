import assert from "node:assert/strict";
import { test } from "node:test";
import { changesBetween } from "../../../src/stateroom/studio/static/edit.js";

const state = {
  value: 3,
  orders: { a: { price: 1, tags: ["x"] }, b: { price: 2, tags: [] } },
  lines: [{ n: 1 }, { n: 2 }],
};

test("states that are equal have no changes", () => {
  assert.deepEqual(changesBetween(state, structuredClone(state)), []);
});

test("each change is as deep as it can be", () => {
  const now = structuredClone(state);
  now.value = 4;
  now.orders.a.price = 5;
  now.lines[1].n = 7;
  assert.deepEqual(changesBetween(state, now), [
    { place: ["value"], value: 4 },
    { place: ["orders", "a", "price"], value: 5 },
    { place: ["lines", 1, "n"], value: 7 },
  ]);
});

test("what is new is set, and what is missing is gone", () => {
  const now = { ...state, orders: { a: state.orders.a, constructor: { price: 3, tags: [] } } };
  assert.deepEqual(changesBetween(state, now), [
    { place: ["orders", "b"], gone: true },
    { place: ["orders", "constructor"], value: { price: 3, tags: [] } },
  ]);
});

test("a list with another length, or of plain items, is set as a whole: it may be a set", () => {
  const now = { ...state, orders: { ...state.orders, a: { price: 1, tags: ["y"] } }, lines: [{ n: 1 }] };
  assert.deepEqual(changesBetween(state, now), [
    { place: ["orders", "a", "tags"], value: ["y"] },
    { place: ["lines"], value: [{ n: 1 }] },
  ]);
});

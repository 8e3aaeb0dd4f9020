import assert from "node:assert/strict";
import { test } from "node:test";
import { filterOf, spanOf } from "../../../src/stateroom/studio/static/histogram.js";
import { columnsOf, levelOf } from "../../../src/stateroom/studio/static/matrix.js";
import { chosen } from "../../../src/stateroom/studio/static/screens/runs.js";
import { sizeOf } from "../../../src/stateroom/studio/static/screens/store.js";
import { RangeSource } from "../../../src/stateroom/studio/static/source.js";

const run = (/** @type {string} */ name, /** @type {number | undefined} */ reward = undefined) => ({
  name,
  environment: null,
  model: "M",
  metrics: { "mean/reward": reward },
});
const BARS = [
  { low: 0, high: 0.5, count: 3 },
  { low: 0.5, high: 1, count: 1 },
];

test("runs are found by text and sorted, those without a value last", () => {
  const runs = [run("a"), run("b", 0.2), run("c", 0.9)];
  const names = (/** @type {string} */ text, /** @type {string} */ sort) =>
    chosen(runs, text, sort).map(({ name }) => name);
  assert.deepEqual(names("", "reward"), ["b", "c", "a"]);
  assert.deepEqual(names("m", "-reward"), ["c", "b", "a"]);
  assert.deepEqual(names("B", "name"), ["b"]);
});

test("neighbouring bars are a filter, and a filter is neighbouring bars", () => {
  assert.deepEqual(filterOf(BARS, [0, 0]), { low: 0, below: 0.5, high: null });
  assert.deepEqual(filterOf(BARS, [1, 0]), { low: 0, below: null, high: 1 });
  assert.deepEqual(filterOf(BARS, null), { low: null, below: null, high: null });
  assert.deepEqual([spanOf(BARS, [0, 0.5]), spanOf(BARS, [0, 1]), spanOf(BARS, null)], [[0, 0], [0, 1], null]);
  assert.equal(spanOf(BARS, [0.1, 0.4]), null);
});

test("rewards that are all the same are one bar", () => {
  const bars = [{ low: 2, high: 2, count: 4 }];
  assert.deepEqual(filterOf(bars, [0, 0]), { low: 2, below: null, high: 2 });
  assert.deepEqual(spanOf(bars, [2, 2]), [0, 0]);
});

test("a matrix has a column for each rollout, and levels from 0 to 1", () => {
  assert.deepEqual(columnsOf([{ rollouts: [{ rollout: 10 }, { rollout: 2 }] }, { rollouts: [] }]), [2, 10]);
  assert.deepEqual([levelOf(0.25, [0, 1]), levelOf(9, [0, 1]), levelOf(null, [0, 1])], [0.25, 1, 0]);
});

test("the size of a store is that of its file, or of what is in it", () => {
  const parts = { sessions: { bytes: 1 }, entries: { bytes: 2 } };
  assert.equal(sizeOf(parts), 3);
  assert.equal(sizeOf({ ...parts, file: { bytes: 9 } }), 9);
});

test("renewed rows are shown until the new ones are there, and a late answer is dropped", async () => {
  /** @type {[number, (rows: string[]) => void][]} */
  const asked = [];
  const source = new RangeSource((first) => new Promise((give) => asked.push([first, give])), 3, 2);
  const turn = () => new Promise((go) => setTimeout(go));
  source.need(0, 1);
  source.renew(3);
  asked[0][1](["late 0", "late 1"]);
  await turn();
  assert.equal(source.at(0), undefined);
  asked[1][1](["one", "two"]);
  await turn();
  source.renew(3);
  assert.equal(source.at(0), "one");
  asked[2][1](["three", "four"]);
  await turn();
  assert.deepEqual([source.at(0), asked.length], ["three", 3]);
});

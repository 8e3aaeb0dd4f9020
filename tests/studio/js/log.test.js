import assert from "node:assert/strict";
import { test } from "node:test";
import { paired, said } from "../../../src/stateroom/studio/static/chat.js";
import { itemsOf, Rows, readRows, withPruned } from "../../../src/stateroom/studio/static/log.js";
import { revisionAt } from "../../../src/stateroom/studio/static/scrubber.js";

/** @typedef {import("../../../src/stateroom/studio/static/log.js").Run} Run */

const RUNS = /** @type {Run[]} */ ([
  ["seed", 1, 1],
  ["call", 11, 14],
  ["message", 15, 15],
  ["call", 16, 20],
]);

test("revisions that are missing were pruned", () => {
  assert.deepEqual(withPruned(RUNS, 22)[1], ["pruned", 2, 10]);
  assert.deepEqual(withPruned(RUNS, 22).at(-1), ["pruned", 21, 22]);
  assert.deepEqual(withPruned([], 0), []);
});

test("each row has a revision, and each revision a row", () => {
  const rows = new Rows(withPruned(RUNS, 20));
  assert.equal(rows.size, 12);
  const revisions = Array.from({ length: 12 }, (_, index) => rows.at(index).revision);
  assert.deepEqual(revisions, [1, 2, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20]);
  assert.deepEqual(
    revisions.map((revision) => rows.indexOf(revision)),
    revisions.map((_, index) => index),
  );
  assert.equal(rows.indexOf(7), 1);
  assert.equal(rows.at(1).until, 10);
});

test("rows of some kinds, also those that are added", () => {
  const rows = new Rows(withPruned(RUNS, 20), ["message"]);
  assert.deepEqual([rows.size, rows.indexOf(14), rows.indexOf(15), rows.indexOf(20)], [1, -1, 0, 0]);
  assert.deepEqual([rows.add(["call", 21, 21]), rows.add(["message", 22, 22])], [false, true]);
  assert.deepEqual([rows.size, rows.at(1).revision, rows.indexOf(22)], [2, 22, 1]);
});

test("rows are read with as few requests as there are parts, and parts that were pruned with none", async (context) => {
  const asked = /** @type {string[]} */ ([]);
  context.mock.method(globalThis, "fetch", async (/** @type {string} */ url) => {
    const query = new URL(url, "http://test").searchParams;
    const [after, limit] = [Number(query.get("after")), Number(query.get("limit"))];
    asked.push(`${after} ${limit}`);
    const known = [1, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20];
    const entries = known.filter((revision) => revision > after && revision <= after + limit);
    const next = after + limit < 20 ? after + limit : null;
    return new Response(JSON.stringify({ entries: entries.map((revision) => ({ revision })), next }));
  });
  const found = await readRows("/sessions/a", new Rows(withPruned(RUNS, 20)), 0, 6);
  assert.deepEqual(
    found.map(({ revision }) => revision),
    [1, 2, 11, 12, 13, 14],
  );
  assert.deepEqual([found[1].kind, found[1].until, found[1].line], ["pruned", 10, "revisions 2 to 10"]);
  assert.deepEqual(asked, ["0 6", "10 4"]);
});

/** @param {any} fields */
const entry = (fields) => ({ revision: 2, at: 0, changes: [], ...fields });

test("a conversation has what the task began with, messages, and calls by hand", () => {
  const seed = { kind: "seed", input: { responses_create_params: { instructions: "Be brief.", input: "Hello" } } };
  const items = itemsOf([
    entry(seed),
    entry({ kind: "call", name: "add", input: {}, output: 1, call_id: "a" }),
    entry({ kind: "call", name: "add", input: {}, output: 2, call_id: "b", by: "ada" }),
    entry({ kind: "message", items: [{ role: "assistant", content: [{ type: "output_text", text: "Hi" }] }] }),
  ]);
  assert.deepEqual(
    items.map((item) => item.role ?? item.type),
    ["system", "user", "function_call", "function_call_output", "assistant"],
  );
  assert.deepEqual(itemsOf([entry({ kind: "seed", input: {} })]), []);
  assert.equal(said(items[4].content), "Hi");
});

test("a conversation leaves out what a rewind has undone", () => {
  const entry = (/** @type {number} */ revision, /** @type {string} */ text) => ({
    revision,
    kind: "message",
    items: [text],
  });
  const entries = /** @type {any[]} */ ([
    { revision: 1, kind: "seed", input: { responses_create_params: { input: "task" } } },
    entry(2, "a"),
    entry(3, "b"),
    { revision: 4, kind: "rewind", to: 2 },
    entry(5, "c"),
    { revision: 6, kind: "rewind", to: 3 },
  ]);
  assert.deepEqual(itemsOf(entries), [{ role: "user", content: "task" }, "a", "b"]);
  assert.deepEqual(itemsOf(entries.slice(0, 5)).slice(1), ["a", "c"]);
});

test("a call has its output; an output without its call stands alone", () => {
  const call = { type: "function_call", call_id: "1" };
  const [first, second] = [1, 2].map((number) => ({ type: "function_call_output", call_id: String(number) }));
  assert.deepEqual(paired([call, second, first]), [{ item: call, output: first }, { item: second }]);
});

test("a place on the scrubber is a revision", () => {
  assert.deepEqual(
    [-1, 0, 0.49, 0.51, 1, 2].map((part) => revisionAt(part, 10_000)),
    [1, 1, 4901, 5101, 10_000, 10_000],
  );
});

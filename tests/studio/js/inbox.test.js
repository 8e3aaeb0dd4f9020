import assert from "node:assert/strict";
import { test } from "node:test";
import { answerOf } from "../../../src/stateroom/studio/static/screens/inbox.js";

const entry = { revision: 5, kind: "message", at: 0, changes: [], moves: ["input_received"], items: [], agent: {} };

test("the answer to a tool's question is what its call was told", () => {
  assert.deepEqual(answerOf({ ...entry, person: "ada", agent: { inputs: ["no", { amount: 5 }] } }), {
    who: "ada",
    text: '{\n  "amount": 5\n}',
  });
});

test("the answer to a model's question is the output of its call", () => {
  const items = [{ type: "function_call_output", call_id: "a", output: "blue" }];
  assert.deepEqual(answerOf({ ...entry, items }), { who: "The user", text: "blue" });
});

test("what a simulated user says is no person's answer, and other entries are none", () => {
  const items = [{ type: "message", role: "user", content: "It is the lamp." }];
  assert.equal(answerOf({ ...entry, items }), null);
  assert.deepEqual(answerOf({ ...entry, items, person: "bob" }), { who: "bob", text: "It is the lamp." });
  assert.equal(answerOf({ ...entry, moves: ["step_complete"] }), null);
  assert.equal(answerOf({ revision: 1, kind: "seed", at: 0, changes: [] }), null);
});

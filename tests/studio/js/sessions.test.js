import assert from "node:assert/strict";
import { test } from "node:test";
import { passes } from "../../../src/stateroom/studio/static/screens/sessions.js";

/** @type {import("../../../src/stateroom/studio/static/screens/sessions.js").Session} */
const session = {
  id: "abc",
  environment: "counter",
  owner: null,
  status: "live",
  phase: "idle",
  reward: 0.5,
  revision: 3,
  created: 0,
};
const all = {
  prefix: "",
  environment: "",
  status: "",
  phase: "",
  owner: "",
  min_reward: "",
  max_reward: "",
  order: "",
};

test("a new session is shown if it passes the filters", () => {
  assert(passes(session, all));
  for (const filter of [
    { prefix: "ab" },
    { status: "live" },
    { min_reward: "0.5" },
    { max_reward: "1" },
    { phase: "idle" },
  ]) {
    assert(passes(session, { ...all, ...filter }), JSON.stringify(filter));
  }
  for (const filter of [
    { prefix: "b" },
    { status: "closed" },
    { owner: "ann" },
    { min_reward: "0.6" },
    { environment: "office" },
  ]) {
    assert(!passes(session, { ...all, ...filter }), JSON.stringify(filter));
  }
  assert(!passes({ ...session, reward: null }, { ...all, max_reward: "1" }));
});

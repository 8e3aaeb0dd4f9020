import assert from "node:assert/strict";
import { test } from "node:test";
import { nameOf, Sequence } from "../../../src/stateroom/studio/static/keys.js";

/** @param {string[]} keys @param {string[]} bound @param {number} [pause] */
function pressed(keys, bound, pause = 10) {
  /** @type {(string | number)[]} */
  const ran = [];
  const bindings = bound.map((one) => ({
    keys: one,
    does: "",
    run: (/** @type {number} */ number) => void ran.push(one, number),
  }));
  const sequence = new Sequence();
  keys.forEach((key, index) => {
    const found = sequence.press(key, bindings, index * pause);
    if (typeof found === "function") found();
  });
  return ran.filter((one) => !Number.isNaN(one));
}

test("a key runs what is bound to it", () => {
  assert.deepEqual(pressed(["j", "x", "k"], ["j", "k"]), ["j", "k"]);
});

test("a sequence takes a number of any length", () => {
  assert.deepEqual(pressed(["g", "1", "2", "Enter"], ["g # Enter", "g s", "Enter"]), ["g # Enter", 12]);
  assert.deepEqual(pressed(["g", "s"], ["g # Enter", "g s", "s"]), ["g s"]);
});

test("a wrong key ends a sequence, and may begin another", () => {
  assert.deepEqual(pressed(["g", "j"], ["g s", "j"]), ["j"]);
  assert.deepEqual(pressed(["g", "g", "s"], ["g s"]), ["g s"]);
});

test("a sequence that is not completed is forgotten", () => {
  assert.deepEqual(pressed(["g", "s"], ["g s", "s"], 3000), ["s"]);
});

test("of two screens that bind a key the later one has it", () => {
  const ran = /** @type {string[]} */ ([]);
  const binding = (/** @type {string} */ name) => ({ keys: "j", does: "", run: () => void ran.push(name) });
  const found = new Sequence().press("j", [binding("shell"), binding("screen")], 0);
  if (typeof found === "function") found();
  assert.deepEqual(ran, ["screen"]);
});

test("a key is named with its modifiers", () => {
  assert.equal(nameOf({ key: "Enter", ctrlKey: true, metaKey: false, altKey: false }), "Ctrl+Enter");
  assert.equal(nameOf({ key: "?", ctrlKey: false, metaKey: false, altKey: false }), "?");
});

import assert from "node:assert/strict";
import { test } from "node:test";
import {
  absolute,
  ago,
  bytes,
  number,
  plural,
  shorten,
  visible,
  wordDifference,
} from "../../../src/stateroom/studio/static/text.js";

test("control, bidi and invisible characters are shown", () => {
  assert.equal(visible("a\u202eb"), "a⟨U+202E⟩b");
  assert.equal(visible("\u0000\u001b[31m\r"), "␀␛[31m␍");
  assert.equal(visible("\u200b\ufeff\u2028\u0085"), "⟨U+200B⟩⟨U+FEFF⟩⟨U+2028⟩⟨U+0085⟩");
  assert.equal(visible("\ud800 \u{e0041}"), "⟨U+D800⟩ ⟨U+E0041⟩");
});

test("ordinary text stays as it is", () => {
  const text = "Zürich\t中文\n👩‍💻 <b>&amp;</b>";
  assert.equal(visible(text), text);
  assert.equal(visible(null), "null");
});

test("times, numbers and sizes are short", () => {
  assert.deepEqual(
    [ago(100, 100.4), ago(0, 65), ago(0, 7300), ago(200_000, 0)],
    ["now", "1 min ago", "2 h ago", "in 2 d"],
  );
  assert.match(absolute(0), /^19(69|70)-\d\d-\d\d \d\d:\d\d:00$/);
  assert.deepEqual([number(12345), number(1 / 3), number(0)], ["12,345", "0.3333", "0"]);
  assert.deepEqual([plural(1, "entry", "entries"), plural(1200, "entry", "entries")], ["1 entry", "1,200 entries"]);
  assert.deepEqual([bytes(0), bytes(999), bytes(1500), bytes(12_345_678)], ["0 B", "999 B", "1.5 kB", "12 MB"]);
  assert.deepEqual([shorten("abc", 3), shorten("abcd", 3)], ["abc", "ab…"]);
});

/** @param {import("../../../src/stateroom/studio/static/text.js").Part[]} parts */
const sides = (parts) => [
  parts.map(({ kind, text }) => (kind === "new" ? "" : text)).join(""),
  parts.map(({ kind, text }) => (kind === "gone" ? "" : text)).join(""),
];

test("a difference names the words that changed", () => {
  assert.deepEqual(wordDifference("pay 30 EUR to Ann", "pay 35 EUR to Ann"), [
    { kind: "same", text: "pay " },
    { kind: "gone", text: "30" },
    { kind: "new", text: "35" },
    { kind: "same", text: " EUR to Ann" },
  ]);
  assert.deepEqual(wordDifference("", "a"), [{ kind: "new", text: "a" }]);
  assert.deepEqual(wordDifference("a", "a"), [{ kind: "same", text: "a" }]);
});

test("a difference has both texts whole, whatever they are", () => {
  let seed = 7;
  const random = (/** @type {number} */ most) => {
    seed = (seed * 1103515245 + 12345) % 2 ** 31;
    return seed % most;
  };
  const text = () => Array.from({ length: random(30) }, () => ["a", "b", "c", " ", "."][random(5)]).join("");
  for (let round = 0; round < 500; round++) {
    const [before, after] = [text(), text()];
    assert.deepEqual(sides(wordDifference(before, after)), [before, after]);
  }
});

test("texts that have little in common are one replacement", () => {
  const words = (/** @type {string} */ name) => Array.from({ length: 5000 }, (_, index) => `${name}${index}`).join(" ");
  const parts = wordDifference(words("a"), words("b"));
  assert.deepEqual(sides(parts), [words("a"), words("b")]);
});

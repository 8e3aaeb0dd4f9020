import assert from "node:assert/strict";
import { beforeEach, test } from "node:test";

const page = Object.assign(new EventTarget(), {
  location: { pathname: "/studio/sessions", search: "?status=live" },
  history: {
    entries: /** @type {string[]} */ ([]),
    pushState: (/** @type {any} */ _state, /** @type {string} */ _title, /** @type {string} */ url) =>
      page.history.entries.push(url),
    replaceState: (/** @type {any} */ _state, /** @type {string} */ _title, /** @type {string} */ url) => {
      page.history.entries[page.history.entries.length - 1] = url;
    },
  },
});
Object.assign(globalThis, {
  location: page.location,
  history: page.history,
  addEventListener: page.addEventListener.bind(page),
});
const { match, navigate, parameter, path, query, view } = await import("../../../src/stateroom/studio/static/route.js");

beforeEach((context) => {
  /** @type {any} */ (context).mock?.timers?.reset?.();
  page.history.entries = ["/studio/sessions?status=live"];
  page.location = Object.assign(page.location, { pathname: "/studio/sessions", search: "?status=live" });
  page.dispatchEvent(new Event("popstate"));
});

test("the view begins with the URL", () => {
  assert.equal(path.value, "/sessions");
  assert.equal(query.value.get("status"), "live");
});

test("a parameter follows the URL, and its fallback is not in it", () => {
  const status = parameter("status", "any");
  assert.equal(status.value, "live");
  status.push("a&b");
  assert.deepEqual(page.history.entries, ["/studio/sessions?status=live", "/studio/sessions?status=a%26b"]);
  status.push("any");
  assert.equal(page.history.entries.at(-1), "/studio/sessions");
});

test("of many changes in place the first and the last are written, and the view follows each", (context) => {
  context.mock.timers.enable({ apis: ["setTimeout"] });
  const at = parameter("at");
  for (let revision = 0; revision < 1000; revision++) at.value = String(revision);
  assert.equal(at.value, "999");
  assert.deepEqual(page.history.entries, ["/studio/sessions?status=live&at=0"]);
  context.mock.timers.tick(200);
  assert.deepEqual(page.history.entries, ["/studio/sessions?status=live&at=999"]);
});

test("a new view keeps the one before as it was last", (context) => {
  context.mock.timers.enable({ apis: ["setTimeout"] });
  parameter("at").value = "7";
  navigate("/runs");
  assert.deepEqual(page.history.entries, ["/studio/sessions?status=live&at=7", "/studio/runs"]);
});

test("Back shows the view before", () => {
  navigate("/runs?x=1");
  page.location.pathname = "/studio/sessions";
  page.dispatchEvent(new Event("popstate"));
  assert.equal(path.value, "/sessions");
});

test("a path gives its named parts", () => {
  assert.deepEqual(match("/sessions/:id", "/sessions/a%2Fb"), { id: "a/b" });
  assert.deepEqual(match("/sessions", "/sessions/"), {});
  assert.equal(match("/sessions/:id", "/sessions"), null);
  assert.deepEqual(match("/sessions/:id", "/sessions/%ff"), { id: "%ff" });
  assert.equal(view("/sessions/a", { at: 5, tab: "", with: null }), "/sessions/a?at=5");
});

import assert from "node:assert/strict";
import { afterEach, test } from "node:test";
import {
  connection,
  EventParser,
  stream as own,
  Stream,
  streamOf,
} from "../../../src/stateroom/studio/static/stream.js";

const TEXT = 'id: a:1\r\nevent: entry\r\ndata: {"x": "é\u2028"}\r\n\r\n: ping\r\n\r\nevent: end\ndata: 1\ndata: 2\n\n';
const EVENTS = [
  { event: "entry", id: "a:1", data: '{"x": "é\u2028"}' },
  { event: "end", id: "a:1", data: "1\n2" },
];

test("events are read wherever the text is cut", () => {
  for (let cut = 0; cut <= TEXT.length; cut++) {
    const parser = new EventParser();
    assert.deepEqual([...parser.push(TEXT.slice(0, cut)), ...parser.push(TEXT.slice(cut))], EVENTS, `cut at ${cut}`);
  }
});

test("an event that is not complete is not told", () => {
  assert.deepEqual(new EventParser().push("event: entry\ndata: {}\n"), []);
});

/** @type {(() => unknown)[]} */
const stops = [];
afterEach(() => {
  for (const stop of stops.splice(0)) stop();
});

/** A server of which the test decides what it sends, and when it breaks. */
function scripted() {
  const line =
    /** @type {{sessions: string, send: (text: string) => void, close: () => void, fail: () => void}[]} */ ([]);
  let arrived = () => {};
  const connect = async (/** @type {string} */ sessions, /** @type {AbortSignal} */ abort) => {
    const encoder = new TextEncoder();
    /** @type {ReadableStreamDefaultController<Uint8Array>} */
    let control;
    const body = new ReadableStream({
      start(controller) {
        control = controller;
      },
    });
    abort.addEventListener("abort", () => control.error(new Error("aborted")));
    line.push({
      sessions,
      send: (text) => control.enqueue(encoder.encode(text)),
      close: () => control.close(),
      fail: () => control.error(new Error("lost")),
    });
    arrived();
    return body;
  };
  const stream = new Stream(connect, () => new Promise((go) => setTimeout(go, 0)));
  const connection = async (/** @type {number} */ number) => {
    while (line.length < number) await new Promise((done) => (arrived = () => done(null)));
    return line[number - 1];
  };
  /** @type {Stream["follow"]} */
  const follow = (...given) => {
    const stop = stream.follow(...given);
    stops.push(stop);
    return stop;
  };
  /** @type {Stream["followNew"]} */
  const followNew = (observer) => {
    const stop = stream.followNew(observer);
    stops.push(stop);
    return stop;
  };
  return { stream, follow, followNew, connection };
}

/** @param {string} session @param {number} revision @param {string} id */
const entry = (session, revision, id) =>
  `id: ${id}\nevent: entry\ndata: ${JSON.stringify({ session, entry: { revision } })}\n\n`;

test("a lost connection is continued without a gap and without a repeat", async () => {
  const { follow, connection } = scripted();
  /** @type {number[]} */
  const heard = [];
  const all = new Promise((done) => {
    follow("a", 3, {
      entry: ({ revision }) => {
        heard.push(revision);
        if (revision === 6) done(null);
      },
    });
  });
  const first = await connection(1);
  assert.equal(first.sessions, "a:3");
  first.send(entry("a", 4, "a:4") + entry("a", 5, "a:5"));
  await new Promise((done) => setTimeout(done, 0));
  first.fail();
  const second = await connection(2);
  assert.equal(second.sessions, "a:5");
  second.send(entry("a", 5, "a:5") + entry("a", 6, "a:6"));
  await all;
  assert.deepEqual(heard, [4, 5, 6]);
});

test("all screens share one connection, and each hears what comes after its own revision", async () => {
  const { follow, connection } = scripted();
  /** @type {string[]} */
  const heard = [];
  const hear = (/** @type {string} */ name) => ({
    entry: (/** @type {any} */ { revision }) => void heard.push(name + revision),
  });
  follow("a", 1, hear("x"));
  follow("a", 2, hear("y"));
  const ended = new Promise((done) => follow("b,*:c", 0, { entry() {}, end: done }));
  const only = await connection(1);
  assert.equal(only.sessions, "a:1,b%2C%2A%3Ac:0");
  only.send(entry("a", 2, "") + entry("a", 3, ""));
  only.send('event: end\ndata: {"session": "b,*:c", "status": "closed"}\n\n');
  assert.deepEqual(await ended, { session: "b,*:c", status: "closed" });
  assert.deepEqual(heard, ["x2", "x3", "y3"]);
});

test("another screen that follows another session makes one new connection from where the first is", async () => {
  const { follow, connection } = scripted();
  const four = new Promise((done) => follow("a", 3, { entry: done }));
  (await connection(1)).send(entry("a", 4, "a:4"));
  await four;
  const stop = follow("b", 0, { entry() {} });
  assert.equal((await connection(2)).sessions, "a:4,b:0");
  stop();
  assert.equal((await connection(3)).sessions, "a:4");
});

test("new sessions are continued from the last event, and a second screen need not wait", async () => {
  const { followNew, connection } = scripted();
  /** @type {string[]} */
  const heard = [];
  const observer = (/** @type {string} */ name) => ({
    session: (/** @type {any} */ { id }) => void heard.push(name + id),
    listening: () => void heard.push(`${name} listens`),
  });
  followNew(observer("x"));
  const first = await connection(1);
  assert.equal(first.sessions, "*");
  first.send('id: *:abc\nevent: listening\ndata: {}\n\nid: *:def\nevent: session\ndata: {"id": "1"}\n\n');
  await new Promise((done) => setTimeout(done, 0));
  followNew(observer("y"));
  first.close();
  assert.equal((await connection(2)).sessions, "*:def");
  const again = ["x listens", "y listens"]; // for changes that were missed
  assert.deepEqual(heard, ["x listens", "x1", "y listens", ...again]);
});

test("the state says whether the connection is there", async () => {
  const { stream, follow, connection } = scripted();
  /** @type {string[]} */
  const states = [];
  stream.state.subscribe((state) => void states.push(state));
  const end = new Promise((done) => follow("a", 0, { entry() {}, end: done }));
  (await connection(1)).fail();
  const second = await connection(2);
  second.send('event: end\ndata: {"session": "a", "status": "closed"}\n\n');
  await end;
  second.close();
  await new Promise((done) => stream.state.subscribe((state) => state === "idle" && done(null)));
  assert.deepEqual(states, ["idle", "connecting", "live", "lost", "connecting", "live", "idle"]);
});

test("each store has one stream, below its own path", async (context) => {
  const asked = /** @type {string[]} */ ([]);
  context.mock.method(globalThis, "fetch", async (/** @type {string} */ url, /** @type {RequestInit} */ { signal }) => {
    asked.push(url);
    const start = (/** @type {ReadableStreamDefaultController} */ control) =>
      signal?.addEventListener("abort", () => control.error(new Error("aborted")));
    return new Response(new ReadableStream({ start }));
  });
  assert.equal(streamOf(""), own);
  assert.equal(streamOf("/runs/a%2Fb"), streamOf("/runs/a%2Fb"));
  const seen = (/** @type {string} */ wanted) =>
    new Promise((done) => connection.subscribe((state) => state === wanted && done(null)));
  const live = seen("live");
  const stop = streamOf("/runs/a%2Fb").follow("x", 3, { entry() {} });
  await live;
  assert.deepEqual(asked, ["/studio/api/runs/a%2Fb/stream?sessions=x%3A3"]);
  stop();
  await seen("idle");
});

import assert from "node:assert/strict";
import { createServer } from "node:http";
import { after, before, test } from "node:test";

/** @type {Map<string, string>} */
const kept = new Map();
const storage = {
  getItem: (/** @type {string} */ key) => kept.get(key) ?? null,
  setItem: (/** @type {string} */ key, /** @type {string} */ value) => void kept.set(key, value),
};
Object.assign(globalThis, { localStorage: storage, sessionStorage: storage });
const { ApiError, address, get, give, person, post, takeToken, wanted } = await import(
  "../../../src/stateroom/studio/static/api.js"
);

/** @type {{url?: string, method?: string, token?: string, body: string}[]} */
const requests = [];
/** @type {(request: {token?: string}) => [number, unknown]} */
let answer = () => [200, {}];
const server = createServer(async (request, response) => {
  let body = "";
  for await (const piece of request) body += piece;
  const heard = { url: request.url, method: request.method, token: request.headers.authorization, body };
  requests.push(heard);
  const [status, said] = answer(heard);
  response.writeHead(status).end(typeof said === "string" ? said : JSON.stringify(said));
});
const { fetch } = globalThis;

before(async () => {
  await new Promise((done) => server.listen(0, "127.0.0.1", () => done(null)));
  const { port } = /** @type {import("node:net").AddressInfo} */ (server.address());
  globalThis.fetch = (url, init) => fetch(`http://127.0.0.1:${port}${url}`, init);
});
after(() => server.close());

test("a token moves from the fragment to the tab's storage", () => {
  assert.equal(takeToken("#token=a%2Fb", storage), "");
  assert.equal(takeToken("#main", storage), "#main");
  assert.deepEqual([...kept.values()], ["a/b"]);
});

test("a request carries the token, and only what its query has", async () => {
  answer = () => [200, { ok: true }];
  assert.deepEqual(await get("/sessions", { owner: "a&b", status: "", phase: null, limit: 5 }), { ok: true });
  assert.deepEqual(requests.at(-1), {
    url: "/studio/api/sessions?owner=a%26b&limit=5",
    method: "GET",
    token: "Bearer a/b",
    body: "",
  });
  assert.equal(address("/x"), "/studio/api/x");
});

test("an error has the server's code, message and fields", async () => {
  answer = () => [
    422,
    { error: { code: "invalid_arguments", message: "count: too small", fields: { count: "too small" } } },
  ];
  await assert.rejects(get("/x"), (error) => {
    assert(error instanceof ApiError);
    assert.deepEqual(
      [error.status, error.code, error.message, error.fields],
      [422, "invalid_arguments", "count: too small", { count: "too small" }],
    );
    return true;
  });
  answer = () => [502, "<html>"];
  await assert.rejects(get("/x"), { status: 502, code: "unknown" });
});

test("a change waits for the person's name, and carries it", async () => {
  answer = () => [200, {}];
  const sent = post("/sessions/a/fork", { at: 3 });
  assert.equal(wanted.value, "name");
  give("Ann");
  await sent;
  assert.deepEqual(JSON.parse(requests.at(-1)?.body ?? ""), { at: 3, by: "Ann" });
  assert.equal(person.value, "Ann");
});

test("a change without a name is not sent", async () => {
  person.value = "";
  const amount = requests.length;
  const sent = post("/x");
  give(null);
  await assert.rejects(sent, { code: "no_name" });
  assert.equal(requests.length, amount);
});

test("a request that wants a token is sent again with it", async () => {
  answer = ({ token }) => (token === "Bearer right" ? [200, { in: true }] : [401, { error: { code: "unauthorized" } }]);
  const asked = get("/x");
  const stop = wanted.subscribe((what) => what === "token" && queueMicrotask(() => give("right")));
  assert.deepEqual(await asked, { in: true });
  stop();
});

test("a token that arrives while a request is under way is not asked for", async () => {
  answer = ({ token }) => {
    if (token === "Bearer new") return [200, { in: true }];
    takeToken("#token=new", storage);
    return [401, { error: { code: "unauthorized" } }];
  };
  let asked = false;
  const stop = wanted.subscribe((what) => {
    asked ||= what === "token";
    if (what) queueMicrotask(() => give(null));
  });
  assert.deepEqual(await get("/x"), { in: true });
  assert.equal(asked, false);
  stop();
});

test("a server that is gone is said so", async () => {
  globalThis.fetch = () => Promise.reject(new TypeError("failed to fetch"));
  await assert.rejects(get("/x"), { status: 0, code: "unreachable" });
});

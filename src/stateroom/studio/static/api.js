/** Requests to Studio's API, with the token of this tab and the name of the person. */
import { signal } from "./html.js";
import { parse } from "./json.js";

const BASE = "/studio/api";
const TOKEN = "stateroom-studio-token";
const NAME = "stateroom-studio-name";

/** What the server says about a request that it refused. */
export class ApiError extends Error {
  /**
   * @param {number} status the HTTP status; 0 if the server was not reached
   * @param {{code?: string, message?: string, fields?: Record<string, string>}} error
   */
  constructor(status, error) {
    super(error.message ?? `the server answered with status ${status}`);
    this.status = status;
    this.code = error.code ?? "unknown";
    /** What is wrong with which field of the request. */
    this.fields = error.fields ?? {};
  }
}

/** The person's name, which every change carries. */
export const person = signal(globalThis.localStorage?.getItem(NAME) ?? "");

/** What a request waits for: the person's name or the token. The shell asks for it. */
export const wanted = signal(/** @type {"name" | "token" | null} */ (null));

/** @type {((given: boolean) => void)[]} */
const waiting = [];

/**
 * Answer what is `wanted`, or leave it with null.
 * @param {string | null} answer
 */
export function give(answer) {
  if (answer !== null && wanted.value === "token") sessionStorage.setItem(TOKEN, answer);
  if (answer !== null && wanted.value === "name") {
    localStorage.setItem(NAME, answer);
    person.value = answer;
  }
  wanted.value = null;
  for (const resolve of waiting.splice(0)) resolve(answer !== null);
}

/**
 * @param {"name" | "token"} what
 * @returns {Promise<boolean>}
 */
function ask(what) {
  wanted.value = what;
  return new Promise((resolve) => waiting.push(resolve));
}

/**
 * Move a token from the URL's fragment to this tab's storage; what the fragment is without it.
 * @param {string} fragment such as `#token=abc`
 * @param {Pick<Storage, "setItem">} storage
 */
export function takeToken(fragment, storage) {
  const rest = new URLSearchParams(fragment.replace(/^#/, ""));
  const token = rest.get("token");
  if (token === null) return fragment;
  storage.setItem(TOKEN, token);
  if (wanted.value === "token") give(token);
  rest.delete("token");
  return rest.size ? `#${rest}` : "";
}

/** @typedef {Record<string, string | number | boolean | null | undefined>} Query Empty values are left out. */

/**
 * The URL of an endpoint.
 * @param {string} path
 * @param {Query} [query]
 */
export function address(path, query = {}) {
  const given = Object.entries(query).filter(([, value]) => value !== null && value !== undefined && value !== "");
  const text = new URLSearchParams(given.map(([name, value]) => [name, String(value)])).toString();
  return `${BASE}${path}${text ? `?${text}` : ""}`;
}

/**
 * The JSON at a path: `get("/sessions", { limit: 10 })`.
 * @param {string} path below the API, each part encoded by the caller
 * @param {Query} [query]
 * @param {AbortSignal} [abort]
 * @returns {Promise<any>}
 */
export async function get(path, query, abort) {
  return parse(await (await request(address(path, query), { signal: abort })).text());
}

/**
 * Change something. The body gets `by`, the person's name, which is asked for if it is not known.
 * @param {string} path
 * @param {object} [body]
 * @returns {Promise<any>}
 */
export async function post(path, body = {}) {
  const sent = JSON.stringify({ ...body, by: await named() });
  return parse(await (await request(address(path), { method: "POST", body: sent })).text());
}

/** The person's name, which is asked for if it is not known. */
export async function named() {
  if (!person.value && !(await ask("name"))) {
    throw new ApiError(0, { code: "no_name", message: "Nothing was sent: enter your name first." });
  }
  return person.value;
}

/**
 * As `open`, and asks the person for a token where the server wants one.
 * @param {string} url
 * @param {RequestInit} init
 * @returns {Promise<Response>}
 */
async function request(url, init) {
  const sent = tokenOfTab();
  try {
    return await open(url, init);
  } catch (error) {
    if (!(error instanceof ApiError) || error.status !== 401) throw error;
    // Nobody is asked again for a token that arrived while this request was under way.
    if (tokenOfTab() !== sent || (await ask("token"))) return request(url, init);
    throw error;
  }
}

function tokenOfTab() {
  return globalThis.sessionStorage?.getItem(TOKEN);
}

/**
 * A response that is not an error.
 * @param {string} url
 * @param {RequestInit} [init]
 */
export async function open(url, init = {}) {
  // Without cookies: that of a session is refused here, and a browser may have one of another server of this machine.
  const response = await fetch(url, { ...init, credentials: "omit", headers: headers(init) }).catch(unreachable);
  if (response.ok) return response;
  const error = await response.json().then(
    (body) => body.error ?? {},
    () => ({}),
  );
  throw new ApiError(response.status, error);
}

/** @param {RequestInit} init */
function headers(init) {
  const token = tokenOfTab();
  return {
    ...(init.body ? { "Content-Type": "application/json" } : {}),
    ...(token ? { Authorization: `Bearer ${token}` } : {}),
  };
}

/**
 * @param {Error} error
 * @returns {never}
 */
function unreachable(error) {
  if (error.name === "AbortError") throw error;
  throw new ApiError(0, { code: "unreachable", message: "The server does not answer. Is it still running?" });
}

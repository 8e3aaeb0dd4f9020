/** What this server allows and serves, read once: its mode, its folder of runs, and its environments with their forms. */
import { get } from "./api.js";
import { useLoad } from "./load.js";

/**
 * @typedef {object} Environment
 * @property {string} name
 * @property {string} description
 * @property {{name: string, description: string, parameters: Schema, effect: "read" | "write" | "external"}[]} tools
 * @property {boolean} replies whether its user answers
 * @property {Schema} task_schema
 * @property {Schema | null} state_schema
 * @property {any[]} examples task rows
 * @property {boolean} model whether a model can act here
 */
/** @typedef {import("./schema.js").Schema} Schema */
/** @typedef {{mode: "read" | "full", runs: string | null, environments: Environment[]}} Served */

/** @type {Promise<Served> | undefined} */
let reading;

async function read() {
  const [about, { environments }] = await Promise.all([get("/about"), get("/environments")]);
  return { ...about, environments };
}

/** What is served, as `useLoad` gives it. */
export function useServed() {
  return useLoad(async () => {
    reading ??= read();
    return reading.catch((error) => {
      reading = undefined;
      throw error;
    });
  }, []);
}

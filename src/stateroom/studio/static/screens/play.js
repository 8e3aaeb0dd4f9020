/** Play by hand: choose a task, then call the tools of a session, with its state beside them. */
import { Ask, SessionActions, useWork } from "../actions.js";
import { get, post } from "../api.js";
import { Chat, said } from "../chat.js";
import { Form } from "../form.js";
import { html, useEffect, useMemo, useRef, useSignal } from "../html.js";
import { useKeys } from "../keys.js";
import { Problem, useLoad } from "../load.js";
import { itemsOf, itemsOfTask } from "../log.js";
import { navigate, parameter, useTitle, view } from "../route.js";
import { useServed } from "../served.js";
import { baseOf, pathOf, SessionLink } from "../session.js";
import { streamOf } from "../stream.js";
import { number, shorten, visible } from "../text.js";
import { Tree } from "../tree.js";
import { Exact } from "../value.js";

/** @typedef {import("../served.js").Environment} Environment */

const SHOWN = 200; // entries that are read when a session is opened
const [chosen, how, example, tool] = ["environment", "task", "example", "tool"].map((name) => parameter(name));

/** @param {{id?: string, run?: string}} parameters of the path; without an id, a task is chosen */
export default function Play({ id, run }) {
  useTitle(id ? `Play ${id}` : "Play");
  const { value, error, retry } = useServed();
  if (error.value) return html`<${Problem} error=${error.value} retry=${retry} />`;
  if (!value.value) return html`<p class="muted">Loading…</p>`;
  const { mode, environments } = value.value;
  if (mode === "read") return html`<p class="empty">Studio is read-only.</p>`;
  if (id) return html`<${Room} id=${id} base=${baseOf(run)} environments=${environments} />`;
  const environment = environments.find(({ name }) => name === chosen.value) ?? environments[0];
  if (environment) return html`<${Tasks} environments=${environments} environment=${environment} />`;
  return html`<p class="empty">No environment is served. Start Studio with one: <code>stateroom studio counter</code></p>`;
}

/** @param {{environments: Environment[], environment: Environment}} properties */
function Tasks({ environments, environment }) {
  const ways = environment.examples.length ? ["Examples", "Form", "JSON"] : ["Form", "JSON"];
  const way = ways.find((one) => one === how.value) ?? ways[0];
  const after = (/** @type {any[]} */ all, /** @type {any} */ one) => all[(all.indexOf(one) + 1) % all.length];
  useKeys("Play", {
    n: ["Next environment", () => chosen.push(after(environments, environment).name)],
    w: ["Another way to give the task", () => how.push(after(ways, way))],
  });
  return html`
    <div class="screen">
      <div class="bar">
        <h1>Play</h1>
        <label for="environment">Environment</label>
        <select id="environment" value=${environment.name}
          onChange=${(/** @type {any} */ event) => chosen.push(event.target.value)}>
          ${environments.map(({ name }) => html`<option value=${name}>${visible(name)}</option>`)}
        </select>
        ${ways.map(
          (one) => html`<button type="button" class="chip" aria-pressed=${way === one}
            onClick=${() => how.push(one)}>${one}</button>`,
        )}
      </div>
      <p class="muted">${visible(environment.description)}</p>
      <div class="scroll" key=${`${environment.name} ${way}`}>
        ${
          way === "Examples"
            ? html`<${Examples} environment=${environment} />`
            : html`<${TaskForm} environment=${environment} isJson=${way === "JSON"} />`
        }
      </div>
    </div>
  `;
}

/**
 * Seed a session and play in it.
 * @param {Environment} environment
 * @param {any} row
 */
async function seed({ name }, row) {
  navigate(`${pathOf("", (await post("/sessions", { environment: name, row })).id)}/play`);
}

/** @param {{environment: Environment}} properties */
function Examples({ environment }) {
  const { busy, error, run } = useWork();
  const edit = (/** @type {number} */ index) =>
    view("/play", { environment: environment.name, task: "Form", example: index });
  return html`
    ${error && html`<${Problem} error=${error} />`}
    <ol class="examples">
      ${environment.examples.map((row, index) => {
        const { responses_create_params: _, ...others } = row;
        const parts = Object.entries(others).map(([name, value]) => `${name}: ${JSON.stringify(value)}`);
        const brief = parts.sort((one, other) => one.length - other.length).join("  ");
        const asked = said(itemsOfTask(row).at(-1)?.content);
        return html`<li>
          <button type="button" class="primary" disabled=${busy} aria-label=${`Play example ${index + 1}`}
            onClick=${run(() => seed(environment, row))}>Play</button>
          <div>
            ${asked && html`<p>${visible(shorten(asked, 240))}</p>`}
            <code class="muted clip">${visible(shorten(brief, 300))}</code>
          </div>
          <button type="button" class="quiet" aria-label=${`Edit example ${index + 1}`}
            onClick=${() => navigate(edit(index))}>Edit</button>
        </li>`;
      })}
    </ol>
  `;
}

/** @param {{environment: Environment, isJson: boolean}} properties */
function TaskForm({ environment, isJson }) {
  const given = environment.examples[Number(example.value || -1)];
  return html`<${Form} schema=${isJson ? { title: "Task" } : environment.task_schema} value=${given ?? (isJson ? {} : undefined)}
    submit="Play" onSubmit=${(/** @type {any} */ row) => seed(environment, row)} />`;
}

/**
 * The last entries of a session, and each one that is added, once and in order.
 * @param {string} base
 * @param {string} id
 */
function useTail(base, id) {
  const { value, error, retry } = useLoad(
    async (abort) => {
      const { revision } = await get(pathOf(base, id), {}, abort);
      const query = { before: revision + 1, limit: SHOWN };
      return { revision, entries: (await get(`${pathOf(base, id)}/log`, query, abort)).entries };
    },
    [base, id],
  );
  const added = useSignal(/** @type {any[]} */ ([]));
  const read = value.value;
  useEffect(() => {
    added.value = [];
    const entry = (/** @type {any} */ one) => {
      added.value = [...added.value, one];
    };
    return read && streamOf(base).follow(id, read.revision, { entry });
  }, [read]);
  return { entries: [...(read?.entries ?? []), ...added.value], error: error.value, retry };
}

/**
 * A session in which a person plays.
 * @param {{id: string, base: string, environments: Environment[]}} properties
 */
function Room({ id, base, environments }) {
  const here = pathOf(base, id);
  const tail = useTail(base, id);
  const newest = tail.entries.at(-1);
  const needs = [here, newest?.revision];
  const session = useLoad((abort) => get(here, {}, abort), needs);
  const state = useLoad((abort) => get(`${here}/state`, {}, abort), needs);
  const items = useMemo(() => itemsOf(tail.entries), needs);
  const retry = () => {
    for (const one of [tail, session, state]) one.retry();
  };
  const error = tail.error ?? session.error.value ?? state.error.value;
  const problem = error && html`<${Problem} error=${error} retry=${retry} />`;
  const head = session.value.value;
  if (!head) return problem ?? html`<p class="muted">Loading…</p>`;
  const environment = environments.find(({ name }) => name === head.environment);
  return html`
    <div class="screen">
      <${Title} base=${base} session=${head} />
      <${SessionActions} base=${base} session=${head} at=${null} />
      ${problem}
      <div class="split play">
        <section class="scroll" aria-label="Tools">
          ${environment ? html`<${Tools} here=${here} environment=${environment} />` : html`<p class="muted">To play, start Studio with ${visible(head.environment)}.</p>`}
        </section>
        <section class="scroll tail" aria-label="Conversation" tabindex="0"><${Chat} items=${items} /></section>
        <section aria-label="State">
          ${state.value.value && html`<${Tree} value=${state.value.value.state} changes=${newest?.changes} />`}
        </section>
      </div>
    </div>
  `;
}

/** @param {{base: string, session: any}} properties */
function Title({ base, session: { id, environment, revision, parent, status, reward } }) {
  return html`
    <div class="bar">
      <h1>Play</h1>
      <${SessionLink} base=${base} id=${id} />
      <span class="muted">${visible(environment)}, revision ${number(revision)}</span>
      ${parent && html`<span class="muted">fork of <${SessionLink} base=${base} id=${parent.session} at=${parent.revision} /></span>`}
      ${status !== "live" && html`<span class=${`badge ${status}`}>${status}</span>`}
      ${reward !== null && html`<span class="badge done">reward <${Exact} value=${reward} /></span>`}
    </div>
  `;
}

/** @param {{here: string, environment: Environment}} properties */
function Tools({ here, environment: { tools, replies } }) {
  const open = (/** @type {number} */ number) => {
    tool.value = tools[number - 1]?.name ?? tool.value;
    requestAnimationFrame(() => {
      const form = document.querySelector(".tool[open] form");
      /** @type {HTMLElement | null | undefined} */ (form?.querySelector("input, textarea, select, button"))?.focus();
    });
  };
  useKeys("Play", { "t #": ["Open a tool", open] });
  return html`
    ${replies && html`<${Reply} here=${here} />`}
    ${tools.map((one) => html`<${Tool} key=${one.name} here=${here} tool=${one} />`)}
  `;
}

/**
 * Send something under a call id that stays the same until the server has answered: what is sent again runs once.
 * @param {string} to
 */
function useAttempt(to) {
  const attempt = useRef({ sent: "", call_id: "" });
  return async (/** @type {object} */ body) => {
    const sent = JSON.stringify(body);
    if (attempt.current.sent !== sent)
      attempt.current = { sent, call_id: crypto.getRandomValues(new Uint32Array(4)).join("-") };
    const reply = await post(to, { ...body, call_id: attempt.current.call_id });
    attempt.current.sent = "";
    return reply;
  };
}

/**
 * One tool: its form, and the result of its last call as the model would read it.
 * @param {{here: string, tool: Environment["tools"][0]}} properties
 */
function Tool({ here, tool: { name, description, parameters, effect } }) {
  const result = useSignal(/** @type {{ok: boolean, output: unknown} | null} */ (null));
  const asks = useSignal(/** @type {((isSure: boolean) => void) | null} */ (null));
  const send = useAttempt(`${here}/call`);
  const decide = async (/** @type {boolean} */ isSure) => {
    asks.value?.(isSure);
    asks.value = null;
  };
  const call = async (/** @type {any} */ given) => {
    const asked = new Promise((answer) => {
      if (effect === "external") asks.value = answer;
      else answer(true);
    });
    if (await asked) result.value = await send({ name, arguments: given });
  };
  const isOpen = tool.value === name;
  const toggle = (/** @type {Event} */ event) => {
    event.preventDefault();
    tool.value = isOpen ? "" : name;
  };
  return html`
    <details class="tool" open=${isOpen}>
      <summary onClick=${toggle}><code>${visible(name)}</code> <span class=${`badge ${effect}`}>${effect}</span></summary>
      <p class="muted">${visible(description)}</p>
      <${Form} schema=${parameters} submit=${`Call ${visible(name)}`} onSubmit=${call} />
      <${Result} result=${result.value} />
      ${
        asks.value &&
        html`<${Ask} title=${`Call ${visible(name)}?`} submit="Call" onSubmit=${() => decide(true)} onClose=${() => decide(false)}
          says="This tool has external effects, which cannot be undone." />`
      }
    </details>
  `;
}

/** @param {{result: {ok: boolean, output: unknown} | null}} properties */
function Result({ result }) {
  const written = typeof result?.output === "string" ? result.output : JSON.stringify(result?.output);
  return html`
    <div role="status">
      ${
        result &&
        html`<p class=${result.ok ? "muted" : "error"}>${result.ok ? "The model reads:" : "The call failed. The model reads:"}</p>
          <pre class="result">${visible(written)}</pre>`
      }
    </div>
  `;
}

/**
 * The environment's user: what one says to them, and what they reply.
 * @param {{here: string}} properties
 */
function Reply({ here }) {
  const result = useSignal(/** @type {{ok: boolean, output: unknown} | null} */ (null));
  const send = useAttempt(`${here}/reply`);
  const say = async (/** @type {any} */ data) => {
    const { reply } = await send(data);
    result.value = { ok: true, output: reply ?? "The user has nothing more to say." };
  };
  return html`
    <section class="tool" aria-label="The user">
      <${Form} schema=${{ type: "object", properties: { message: { type: "string" } }, required: ["message"] }}
        submit="Say it to the user" onSubmit=${say} />
      <${Result} result=${result.value} />
    </section>
  `;
}

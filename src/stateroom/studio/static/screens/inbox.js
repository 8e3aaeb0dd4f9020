/** All sessions whose agents wait for a person, the oldest question first: it, what led to it, and the answer. */
import { ApiError, get, post } from "../api.js";
import { Chat, said } from "../chat.js";
import { Differences } from "../difference.js";
import { html, useEffect, useRef, useSignal } from "../html.js";
import { parse } from "../json.js";
import { useKeys } from "../keys.js";
import { Problem, useLoad, usePoll } from "../load.js";
import { itemsOf } from "../log.js";
import { Link, parameter, useTitle, view } from "../route.js";
import { useServed } from "../served.js";
import { pathOf, SessionLink } from "../session.js";
import { absolute, ago, plural, visible } from "../text.js";

const WAITING = "waiting_feedback";
const CONTEXT = 12; // items before the question

const chosen = parameter("session");

/** @typedef {import("../log.js").Entry} Entry */

/**
 * Who answered an agent's question, and what; null if an entry is no answer. What a simulated user says is none.
 * @param {Entry} entry
 * @returns {{who: string, text: string} | null}
 */
export function answerOf({ moves, items, agent, person }) {
  const item = items?.[0];
  if (!moves?.includes("input_received") || (!person && item?.type === "message")) return null;
  return { who: person ?? "The user", text: said(item ? (item.output ?? item.content) : agent.inputs.at(-1)) };
}

export default function Inbox() {
  useTitle("Inbox");
  const { value, error, retry } = usePoll("/inbox");
  const done = useSignal(0);
  const sessions = /** @type {any[]} */ (value.value?.sessions ?? []);
  const ids = sessions.map(({ id }) => id);
  const at = ids.indexOf(chosen.value);
  useEffect(() => {
    if (!chosen.value && ids.length) chosen.value = ids[0];
  }, [ids.join()]);
  const go = (/** @type {number} */ by) => () => {
    if (ids.length) chosen.push(ids[Math.max(0, Math.min(ids.length - 1, at + by))]);
  };
  const next = () => {
    const others = ids.filter((id) => id !== chosen.value);
    chosen.push(others[Math.max(at, 0) % others.length] ?? "");
    retry();
  };
  useKeys("Inbox", { j: ["Next question", go(1)], k: ["Previous question", go(-1)] });
  const told = [
    value.value && `${plural(ids.length, "session")}${value.value.more ? " or more" : ""} waiting`,
    done.value && `${done.value} answered`,
  ];
  return html`
    <div class="screen">
      <div class="bar"><h1>Inbox</h1><span class="muted" role="status">${told.filter(Boolean).join(", ")}</span></div>
      ${error.value && html`<${Problem} error=${error.value} retry=${retry} />`}
      ${value.value && !ids.length && !chosen.value && html`<p class="empty">No open questions. When an agent asks one, it appears here.</p>`}
      <div class="split inbox">
        <nav class="scroll" aria-label="Sessions that wait">
          ${sessions.map((one) => html`<${Waiting} key=${one.id} ...${one} />`)}
        </nav>
        ${
          chosen.value &&
          html`<${Question} key=${chosen.value} id=${chosen.value} isWaiting=${at >= 0} next=${next}
            onDone=${() => done.value++} />`
        }
      </div>
    </div>
  `;
}

/** @param {{id: string, environment: string, asked: number}} session */
function Waiting({ id, environment, asked }) {
  return html`
    <${Link} to=${view("/inbox", { session: id })} aria-current=${chosen.value === id ? "true" : undefined}>
      <span class="data clip">${visible(id)}</span>
      <span class="muted">${visible(environment)}, asked <time title=${absolute(asked)}>${ago(asked)}</time></span>
    <//>
  `;
}

/**
 * What a session's agent asks, what led to it, and what changed since it was last told something.
 * @param {string} id
 * @param {AbortSignal} abort
 */
async function readQuestion(id, abort) {
  const here = pathOf("", id);
  const session = await get(here, {}, abort);
  const { entries } = await get(`${here}/log`, { before: session.revision + 1, limit: 200 }, abort);
  const place = entries.findLastIndex((/** @type {Entry} */ one) => one.agent?.phase === WAITING);
  const before = entries.slice(0, place + 1);
  const since = before.findLast((/** @type {Entry} */ one) => answerOf(one))?.revision ?? 1;
  const { differences } = await get(`${here}/diff`, { from: since, to: session.revision }, abort);
  const answer = entries
    .slice(place + 1)
    .map(answerOf)
    .find(Boolean);
  const last = itemsOf(before).slice(-CONTEXT);
  const items = last.slice(last.findIndex(({ type }) => type !== "function_call_output")); // whose call is not among them
  return { session, asked: entries[place], items, since, differences, answer };
}

/** @param {{id: string, isWaiting: boolean, next: () => void, onDone: () => void}} properties */
function Question({ id, isWaiting, next, onDone }) {
  const { value, error, retry } = useLoad((abort) => readQuestion(id, abort), [id, isWaiting]);
  const problem = useSignal("");
  if (error.value) return html`<${Problem} error=${error.value} retry=${retry} />`;
  if (!value.value) return html`<p class="muted">Loading…</p>`;
  const { session, asked, items, since, differences, answer } = value.value;
  const send = (/** @type {unknown} */ input) => post(`${pathOf("", id)}/answer`, { input, to: asked.agent.said });
  return html`
    <article class="scroll" aria-label="Question">
      <h2>${visible(asked?.agent.question ?? said(items.at(-1)?.content))}</h2>
      ${problem.value && html`<p class="error" role="alert">${visible(problem.value)}</p>`}
      ${
        session.phase === WAITING
          ? html`<${Answer} session=${session} asked=${asked} send=${send} problem=${problem} onDone=${onDone} next=${next} reread=${retry} />`
          : html`<p role="status">${answer ? html`<b>${visible(answer.who)}</b> has answered: <code>${visible(answer.text)}</code>` : "This agent no longer waits for an answer."} <button type="button" onClick=${next}>Next</button></p>`
      }
      <h3>What led to it in <${SessionLink} base="" id=${id} /></h3>
      <${Chat} items=${items} />
      <h3>Changed since revision ${since}</h3>
      ${differences.length ? html`<${Differences} changes=${differences} />` : html`<p class="muted">Nothing.</p>`}
    </article>
  `;
}

/**
 * The field for an answer. An answer that came too late is kept in it, below what somebody else has answered.
 * @param {{session: any, asked: Entry, send: (input: unknown) => Promise<any>,
 *   problem: import("../html.js").Signal<string>, onDone: () => void, next: () => void,
 *   reread: () => void}} properties
 */
function Answer({ session, asked, send, problem, onDone, next, reread }) {
  const served = useServed().value.value;
  const hasModel = served?.environments.some(({ name, model }) => model && name === session.environment);
  const field = useRef(/** @type {HTMLTextAreaElement | null} */ (null));
  const text = useSignal("");
  const [isData, goesOn, busy] = [useSignal(false), useSignal(true), useSignal(false)];
  const here = pathOf("", session.id);
  const explain = async (/** @type {Error} */ error) => {
    problem.value = error.message;
    if (!(error instanceof ApiError) || error.status !== 409) return;
    const { entries } = await get(`${here}/log`, { after: asked.revision, kinds: "message" });
    const other = entries.map(answerOf).find(Boolean);
    if (other) problem.value = `${other.who} has answered already: ${other.text}. Your answer was not sent.`;
    reread();
  };
  const submit = async (/** @type {Event | undefined} */ event) => {
    event?.preventDefault();
    if (busy.value || !text.value.trim()) return;
    busy.value = true;
    problem.value = "";
    try {
      await send(isData.value ? parse(text.value) : text.value);
      if (hasModel && goesOn.value) await post(`${here}/continue`);
      onDone();
      next();
    } catch (error) {
      await explain(/** @type {Error} */ (error));
    }
    busy.value = false;
  };
  useEffect(() => field.current?.focus(), [served]);
  const mayAnswer = served?.mode === "full";
  /** @type {Parameters<typeof useKeys>[1]} */
  const keys = {
    a: ["Write an answer", () => field.current?.focus()],
    "Ctrl+Enter": ["Send the answer", () => submit(undefined)],
  };
  useKeys("Answer", mayAnswer ? keys : {});
  if (!mayAnswer) return null;
  return html`
    <form class="schema" onSubmit=${submit}>
      <div class="field">
        <label for="reply">Answer</label>
        <textarea id="reply" ref=${field} rows="3" value=${text.value}
          onInput=${(/** @type {any} */ event) => (text.value = event.target.value)}></textarea>
      </div>
      <div class="bar">
        <button type="submit" class="primary" disabled=${busy.value}>Answer</button>
        ${hasModel && html`<${Box} label="Then let the model continue" value=${goesOn} />`}
        <${Box} label="The answer is JSON" value=${isData} />
      </div>
    </form>
  `;
}

/** @param {{label: string, value: import("../html.js").Signal<boolean>}} properties */
function Box({ label, value }) {
  return html`<label class="check"><input type="checkbox" checked=${value.value}
    onChange=${(/** @type {any} */ event) => (value.value = event.target.checked)} /> ${label}</label>`;
}

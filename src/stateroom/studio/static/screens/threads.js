/** Conversations as chats: each is a session, and what is said in it appears as it is committed. */
import { useProgress, useWork } from "../actions.js";
import { get, post } from "../api.js";
import { Chat } from "../chat.js";
import { ChoiceFilter, Filters } from "../filters.js";
import { html, useEffect, useRef, useSignal } from "../html.js";
import { useKeys, useListKeys } from "../keys.js";
import { List } from "../list.js";
import { Problem, useLoad } from "../load.js";
import { itemsOf, TALK } from "../log.js";
import { Link, navigate, query, useTitle, view } from "../route.js";
import { useServed } from "../served.js";
import { pathOf } from "../session.js";
import { stream } from "../stream.js";
import { ago, visible } from "../text.js";
import { useSessions } from "./sessions.js";

/** @typedef {import("../log.js").Entry} Entry */
/** @typedef {import("./sessions.js").Session} Session */

const THREAD = "thread"; // the environment of conversations without tools
const PAGE = 200;

/** @param {{id?: string}} properties */
export default function Threads({ id }) {
  useTitle(id ? `Thread ${id}` : "Threads");
  const about = useServed();
  const mayChange = about.value.value?.mode === "full";
  const { error, run } = useWork();
  const make = run(async () => {
    const made = await post("/sessions", { environment: THREAD, row: {} });
    navigate(`/threads/${encodeURIComponent(made.id)}`);
  });
  useKeys("Threads", mayChange ? { c: ["New thread", make] } : {});
  return html`
    <div class=${`screen threads ${id ? "one" : ""}`}>
      <div class="bar">
        <h1>${id ? html`<${Link} to=${view("/threads", Object.fromEntries(query.value))}>Threads<//>` : "Threads"}</h1>
        ${mayChange && html`<button type="button" onClick=${make}>New thread</button>`}
      </div>
      ${error && html`<${Problem} error=${error} />`}
      <div class="split">
        <${ThreadList} id=${id} />
        ${id ? html`<${Thread} id=${id} mayChange=${mayChange} />` : html`<p class="empty">Choose a thread.</p>`}
      </div>
    </div>
  `;
}

/** @param {{id?: string}} properties */
function ThreadList({ id }) {
  const show = query.value.get("show");
  const wanted = { prefix: "", environment: show ? "" : THREAD };
  const { source } = useSessions(wanted, (one) => one.environment === THREAD || one.phase !== null);
  const active = useSignal(-1);
  const viewOf = (/** @type {Session} */ one) => view(`/threads/${encodeURIComponent(one.id)}`, { show });
  const open = (/** @type {Session} */ one) => navigate(viewOf(one));
  useListKeys("List of threads", "thread", source, active, open);
  const cells = (/** @type {Session} */ one) => html`
    <div role="gridcell"><${Link} to=${viewOf(one)} class="data" tabindex="-1"
      aria-current=${one.id === id ? "true" : undefined}>${visible(one.id)}<//></div>
    <div role="gridcell" class="muted">${visible(one.environment === THREAD ? (one.owner ?? "") : one.environment)}</div>
    <div role="gridcell" class="muted">${ago(one.created)}</div>
  `;
  const choices = [
    ["", "Threads"],
    ["all", "All conversations"],
  ];
  return html`
    <section aria-label="List of threads">
      <${Filters} label="Filter the threads" names=${[]}>
        <${ChoiceFilter} name="show" label="Show" options=${choices} />
      <//>
      ${source.error.value && html`<${Problem} error=${source.error.value} retry=${() => source.retry()} />`}
      ${source.complete.value && !source.size.value && html`<p class="empty">There are no threads yet.</p>`}
      ${source.size.value > 0 && html`<${List} label="Threads" source=${source} active=${active} row=${cells} onOpen=${open} />`}
    </section>
  `;
}

/**
 * The entries of a conversation, the last ones first; later ones come by the stream.
 * @param {string} id
 */
function useConversation(id) {
  const entries = useSignal(/** @type {Entry[]} */ ([]));
  const before = useSignal(/** @type {number | null} */ (null));
  const path = pathOf("", id);
  const read = async (/** @type {number} */ until, /** @type {AbortSignal | undefined} */ abort = undefined) => {
    const page = await get(`${path}/log`, { before: until, limit: PAGE, kinds: TALK }, abort);
    entries.value = [...page.entries, ...entries.value];
    before.value = page.next;
  };
  const loaded = useLoad(
    async (abort) => {
      const head = await get(path, {}, abort);
      entries.value = [];
      await read(head.revision + 1, abort);
      return head;
    },
    [id],
  );
  const head = loaded.value.value;
  useEffect(() => {
    if (!head) return;
    const entry = (/** @type {Entry} */ one) => {
      if (TALK.includes(one.kind)) entries.value = [...entries.value, one];
    };
    return stream.follow(id, head.revision, { entry });
  }, [head]);
  return { head, entries, before, read, error: loaded.error.value, retry: loaded.retry };
}

/** @param {{id: string, mayChange: boolean}} properties */
function Thread({ id, mayChange }) {
  const { head, entries, before, read, error, retry } = useConversation(id);
  const talk = useRef(/** @type {HTMLDivElement | null} */ (null));
  const newest = entries.value.at(-1)?.revision;
  if (error) return html`<section><${Problem} error=${error} retry=${retry} /></section>`;
  if (!head) return html`<section></section>`;
  const earlier = () => read(/** @type {number} */ (before.value));
  const toEnd = () => talk.current?.scrollTo(0, 0); // the end is where `.talk` begins
  const items = itemsOf(entries.value);
  return html`
    <section aria-label="Thread">
      <div class="bar">
        <span class="badge">${visible(head.environment)}</span>
        ${head.status !== "live" && html`<span class=${`badge ${head.status}`}>${head.status}</span>`}
        <${Link} to=${pathOf("", id)}>Timeline<//>
      </div>
      <div ref=${talk} class="scroll talk" tabindex="0" role="region" aria-label="Conversation" aria-live="polite">
        <div>
          ${before.value && html`<button type="button" class="quiet" onClick=${earlier}>Show earlier messages</button>`}
          ${items.length ? html`<${Chat} items=${items} />` : html`<p class="empty">There are no messages yet.</p>`}
        </div>
      </div>
      ${mayChange && head.status === "live" && html`<${Composer} id=${id} revision=${newest} onSend=${toEnd} />`}
    </section>
  `;
}

/**
 * Sends a message, which the model answers.
 * @param {{id: string, revision: number | undefined, onSend: () => void}} properties
 */
function Composer({ id, revision, onSend }) {
  const here = pathOf("", id);
  const { running, error, refresh } = useProgress(here, revision);
  const { busy, error: problem, run } = useWork();
  const field = useRef(/** @type {HTMLTextAreaElement | null} */ (null));
  const send = run(async () => {
    const message = field.current?.value.trim();
    if (!message || running) return;
    onSend();
    await post(`${here}/continue`, { message }).finally(refresh);
    if (field.current) field.current.value = "";
  });
  const submit = (/** @type {Event} */ event) => {
    event.preventDefault();
    send();
  };
  useKeys("Thread", { m: ["Write a message", () => field.current?.focus()], "Ctrl+Enter": ["Send the message", send] });
  return html`
    <form class="composer" onSubmit=${submit}>
      ${problem && html`<${Problem} error=${problem} />`}
      ${error && html`<p class="error" role="alert">${visible(error)}</p>`}
      <label for="message">Message</label>
      <textarea id="message" ref=${field} rows="3"></textarea>
      <div class="bar">
        <button type="submit" class="primary" disabled=${busy || running}>Send</button>
        ${running && html`<button type="button" onClick=${run(() => post(`${here}/stop`).finally(refresh))}>Stop</button>`}
        <span class="muted" role="status">${running && "The model answers…"}</span>
      </div>
    </form>
  `;
}

/** All sessions of the store, filtered by the server; new ones appear as they are seeded. */
import { get } from "../api.js";
import { ChoiceFilter, Filters, TextFilter } from "../filters.js";
import { html, useEffect, useMemo, useRef, useSignal } from "../html.js";
import { useListKeys } from "../keys.js";
import { List } from "../list.js";
import { Problem, useLoad } from "../load.js";
import { Link, navigate, query, useTitle } from "../route.js";
import { pathOf } from "../session.js";
import { CursorSource } from "../source.js";
import { stream } from "../stream.js";
import { absolute, ago, number, plural, visible } from "../text.js";
import { Exact } from "../value.js";

/**
 * @typedef {object} Session
 * @property {string} id
 * @property {string} environment
 * @property {string | null} owner
 * @property {"live" | "closed" | "expired"} status
 * @property {string | null} phase
 * @property {number | null} reward
 * @property {number} revision
 * @property {number} created
 */

/** @typedef {Record<string, string>} Wanted The filters. */

const NAMES = ["prefix", "environment", "status", "phase", "owner", "min_reward", "max_reward", "order"];
const PHASES = ["idle", "planning", "executing", "waiting_feedback", "done", "failed", "cancelled"];
const LOOKED_AT = 1000; // sessions whose environments can be chosen
const ORDERS = { "": "Newest first", oldest: "Oldest first", reward: "Highest reward first" };

/**
 * Whether a session passes the filters, as the server decides it.
 * @param {Session} session
 * @param {Wanted} wanted
 */
export function passes(session, wanted) {
  const reward = session.reward ?? Number.NaN;
  return (
    session.id.startsWith(wanted.prefix) &&
    (!wanted.environment || session.environment === wanted.environment) &&
    (!wanted.status || session.status === wanted.status) &&
    (!wanted.phase || session.phase === wanted.phase) &&
    (!wanted.owner || session.owner === wanted.owner) &&
    (!wanted.min_reward || reward >= Number(wanted.min_reward)) &&
    (!wanted.max_reward || reward <= Number(wanted.max_reward))
  );
}

/**
 * The sessions behind filters, page by page: the first page is small, so that it is there at once.
 * @param {Wanted} wanted
 * @param {(session: Session) => boolean} isShown
 * @returns {CursorSource<Session>}
 */
function sourceOf(wanted, isShown) {
  return new CursorSource(
    async (cursor) => {
      const page = await get("/sessions", { ...wanted, cursor, limit: cursor ? 1000 : 100 });
      return { rows: page.sessions.filter(isShown), next: page.next };
    },
    (session) => session.id,
  );
}

/**
 * The list for some filters, with new ones as they are seeded. The one before stays until the first page of the next is there.
 * @param {Wanted} wanted
 * @param {(session: Session) => boolean} [isShown] whether one that passes them is in the list
 */
export function useSessions(wanted, isShown = () => true) {
  const again = useSignal(0);
  const key = JSON.stringify(wanted);
  const next = useMemo(() => sourceOf(wanted, isShown), [key, again.value]);
  const shown = useSignal(next);
  useEffect(() => {
    let isCurrent = true;
    next.need(0, 0).then(() => {
      if (isCurrent) shown.value = next;
    });
    return () => {
      isCurrent = false;
    };
  }, [next]);
  const reload = () => void again.value++;
  return { source: shown.value, reload, unseen: useNew(shown.value, wanted, reload, isShown) };
}

/**
 * Hear of new sessions, and of changes; how many there are that the list does not show by itself.
 * @param {CursorSource<Session>} source
 * @param {Wanted} wanted
 * @param {() => void} reload
 * @param {(session: Session) => boolean} isShown
 */
function useNew(source, wanted, reload, isShown) {
  const unseen = useSignal(0);
  useEffect(() => {
    unseen.value = 0;
    const isNewest = !wanted.order;
    const session = (/** @type {Session} */ one, /** @type {boolean} */ isNew) => {
      if (source.has(one)) return source.insert([one]);
      if (!isNew || !passes(one, wanted) || !isShown(one)) return;
      if (isNewest) source.insert([one]);
      else unseen.value++;
    };
    const listening = async () => {
      if (!isNewest || !source.size.value) return;
      const { sessions } = await get("/sessions", { ...wanted, limit: 100 });
      const shown = sessions.filter(isShown);
      if (shown.length && sessions.length === 100 && !shown.some(source.has)) reload();
      else source.insert(shown);
    };
    return stream.followNew({ session, listening });
  }, [source]);
  return unseen;
}

export default function Sessions() {
  useTitle("Sessions");
  const wanted = Object.fromEntries(NAMES.map((name) => [name, query.value.get(name) ?? ""]));
  const { source, reload, unseen } = useSessions(wanted);
  const active = useSignal(0);
  const open = (/** @type {Session} */ session) => navigate(pathOf("", session.id));
  useListKeys("Sessions", "session", source, active, open, { r: ["Read the list again", reload] });
  const [size, isComplete, error] = [source.size.value, source.complete.value, source.error.value];
  const count = size || isComplete ? plural(size, "session") + (isComplete ? "" : " or more") : "";
  return html`
    <div class="screen">
      <div class="bar">
        <h1>Sessions</h1>
        <span class="muted" role="status">${count}</span>
        ${unseen.value > 0 && html`<button class="chip" onClick=${reload}>${number(unseen.value)} new</button>`}
      </div>
      <${SessionFilters} source=${source} />
      ${error && html`<${Problem} error=${error} retry=${() => source.retry()} />`}
      ${isComplete && !size && html`<${Nothing} />`}
      ${
        size > 0 &&
        html`<${List} name="sessions" label="Sessions" source=${source} active=${active} row=${cells}
          header=${header} onOpen=${open} />`
      }
    </div>
  `;
}

function Nothing() {
  const isFiltered = NAMES.some((name) => query.value.get(name));
  return html`
    <p class="empty">
      ${isFiltered ? "No sessions match these filters." : "There are no sessions yet. New sessions appear here."}
      ${isFiltered && html` <${Link} to="/sessions">Clear the filters<//>`}
    </p>
  `;
}

/**
 * The environments that one can choose: those that are served, and those of the sessions that were listed.
 * @param {CursorSource<Session>} source
 */
function useEnvironments(source) {
  const about = useLoad((abort) => get("/about", {}, abort), []);
  const known = useRef(new Set([query.value.get("environment") ?? ""]));
  for (const name of about.value.value?.environments ?? []) known.current.add(name);
  for (let index = 0; index < Math.min(source.size.value, LOOKED_AT); index++) {
    known.current.add(/** @type {Session} */ (source.at(index)).environment);
  }
  return [...known.current].filter(Boolean).sort();
}

/**
 * The filters; each is a parameter of the URL.
 * @param {{source: CursorSource<Session>}} properties
 */
function SessionFilters({ source }) {
  const environments = useEnvironments(source).map((name) => [name, visible(name)]);
  const options = (/** @type {string[]} */ names) => [
    ["", "any"],
    ...names.map((name) => [name, name.replaceAll("_", " ")]),
  ];
  return html`
    <${Filters} label="Filter the sessions" names=${NAMES}>
      <${TextFilter} name="prefix" label="Id prefix" />
      <${ChoiceFilter} name="environment" label="Environment" options=${[["", "any"], ...environments]} />
      <${ChoiceFilter} name="status" label="Status" options=${options(["live", "closed", "expired"])} />
      <${ChoiceFilter} name="phase" label="Agent" options=${options(PHASES)} />
      <${TextFilter} name="owner" label="Owner" />
      <${TextFilter} name="min_reward" label="Reward from" type="number" />
      <${TextFilter} name="max_reward" label="Reward to" type="number" />
      <${ChoiceFilter} name="order" label="Order" options=${Object.entries(ORDERS)} />
    <//>
  `;
}

const header = ["Session", "Environment", "Status", "Agent", "Reward", "Revision", "Owner", "Created"].map(
  (name) => html`<div role="columnheader" class=${name.toLowerCase()}>${name}</div>`,
);

/** @param {Session} session */
function cells(session) {
  const { id, environment, status, phase, reward, revision, owner, created } = session;
  const agent = phase && html`<span class=${`badge ${phase}`}>${visible(phase.replaceAll("_", " "))}</span>`;
  return html`
    <div role="gridcell" class="session"><${Link} to=${pathOf("", id)} tabindex="-1">${visible(id)}<//></div>
    <div role="gridcell" class="environment">${visible(environment)}</div>
    <div role="gridcell" class="status"><span class=${`badge ${status}`}>${status}</span></div>
    <div role="gridcell" class="agent">${agent}</div>
    <div role="gridcell" class="reward number">${reward !== null && html`<${Exact} value=${reward} />`}</div>
    <div role="gridcell" class="revision number">${number(revision)}</div>
    <div role="gridcell" class="owner">${owner && visible(owner)}</div>
    <div role="gridcell" class="created"><time title=${absolute(created)}>${ago(created)}</time></div>
  `;
}

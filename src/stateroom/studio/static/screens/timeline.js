/** A session in time: its entries, and what each revision is. */
import { SessionActions, Verdict } from "../actions.js";
import { html, useEffect, useMemo, useRef, useSignal } from "../html.js";
import { useKeys } from "../keys.js";
import { List } from "../list.js";
import { Problem } from "../load.js";
import { lookOf } from "../log.js";
import { Revision, TABS } from "../revision.js";
import { Link, parameter, useTitle, view } from "../route.js";
import { Scrubber } from "../scrubber.js";
import { baseOf, pathOf, SessionLink, useSession } from "../session.js";
import { absolute, number, plural, visible } from "../text.js";
import { Exact } from "../value.js";

const at = parameter("at"); // the revision that is looked at; without one, the newest
const tab = parameter("tab", "changes");
const kinds = parameter("kinds");
const text = parameter("text");
const RELATIVES = 100; // forks that are listed

/** @param {{id: string, run?: string}} properties */
export default function Timeline({ id, run }) {
  useTitle(id);
  const base = baseOf(run);
  const session = useSession(base, id);
  if (session.error) return html`<${Problem} error=${session.error} retry=${session.retry} />`;
  if (!session.head || !session.log) return html`<p class="muted">Loading…</p>`;
  return html`<${Opened} base=${base} ...${session} />`;
}

/** @typedef {ReturnType<typeof useSession> & {base: string, log: import("../session.js").Log}} Opening */

/** @param {Opening} properties */
function Opened({ base, head, lineage, log, list, phase, retry }) {
  const newest = log.newest.value;
  const revision = Math.max(1, Math.min(newest, Math.floor(Number(at.value)) || newest));
  const entries = useMemo(
    () => (text.value ? log.search(text.value, wantedKinds()) : log.list(wantedKinds())),
    [log, text.value, kinds.value],
  );
  list.current = entries;
  useEffect(() => entries.stop, [entries]);
  const goTo = (/** @type {number} */ to) => {
    at.value = String(Math.max(1, Math.min(newest, to)));
  };
  useKeys("Timeline", {
    "g # Enter": ["Go to a revision", goTo],
    ...Object.fromEntries(TABS.map(([name, title], index) => [`${index + 1}`, [title, () => (tab.value = name)]])),
    r: ["Read the session again", retry],
  });
  const session = { ...head, revision: newest, phase: phase || head.phase };
  return html`
    <div class="screen timeline">
      <${Head} base=${base} session=${session} lineage=${lineage} at=${revision} />
      <${Scrubber} log=${log} value=${revision} onChange=${goTo} />
      <div class="split">
        <${EntriesPane} log=${log} entries=${entries} isLive=${head.status === "live"} />
        <${Revision} base=${base} id=${head.id} log=${log} entries=${entries} at=${revision} tab=${tab}
          forks=${lineage?.descendants.filter(isForkOf(head.id, revision)) ?? []} />
      </div>
    </div>
  `;
}

const wantedKinds = () => (kinds.value ? kinds.value.split(",") : []);

/**
 * The entries; those of a session that lives are followed until one looks at an older one.
 * @param {{log: import("../session.js").Log, entries: import("../session.js").Entries, isLive: boolean}} properties
 */
function EntriesPane({ log, entries, isLive }) {
  const { source } = entries;
  const newest = log.newest.value;
  const follows = at.value === "";
  const seen = useSignal(newest);
  useEffect(() => {
    if (follows) seen.value = newest;
  }, [follows, newest]);
  const active = useMemo(() => chosen(log, entries), [log, entries]);
  const move = (/** @type {number} */ by) => () => {
    active.value = Math.max(0, Math.min(source.size.value - 1, active.value + by));
  };
  const follow = () => {
    at.value = follows ? String(newest) : "";
  };
  useKeys("Entries", {
    j: ["Next entry", move(1)],
    k: ["Previous entry", move(-1)],
    f: ["Follow the newest, or pause", follow],
  });
  return html`
    <section aria-label="Entries">
      <div class="bar">
        <input type="search" aria-label="Find in the log" placeholder="Find in the log" value=${text.value}
          onInput=${(/** @type {any} */ event) => (text.value = event.target.value)} />
        <span class="muted" role="status">${told(source)}</span>
        ${isLive && html`<${Follow} follows=${follows} unseen=${newest - seen.value} onClick=${follow} />`}
      </div>
      <${Filters} log=${log} />
      ${source.error.value && html`<${Problem} error=${source.error.value} retry=${() => source.retry()} />`}
      <${EntryList} key=${`${text.value}\n${kinds.value}`} source=${source} active=${active}
        follows=${follows && isLive} pause=${() => follows && isLive && follow()} />
    </section>
  `;
}

/**
 * The row that is active: that of the revision in the URL.
 * @param {import("../session.js").Log} log
 * @param {import("../session.js").Entries} entries
 */
function chosen(log, entries) {
  return {
    get value() {
      entries.source.version.value; // a search finds more rows
      return entries.indexOf(Math.floor(Number(at.value)) || log.newest.value);
    },
    set value(index) {
      if (entries.source.size.value) at.value = String(entries.revisionAt(index));
    },
  };
}

/**
 * @param {string} id
 * @param {number} revision
 */
const isForkOf = (id, revision) => (/** @type {any} */ one) =>
  one.parent.session === id && one.parent.revision === revision;

/**
 * How many entries there are.
 * @param {import("../source.js").Source<any>} source
 */
function told(source) {
  const size = source.size.value;
  if (!text.value) return plural(size, "entry", "entries");
  return source.complete.value ? `${number(size)} found` : size ? `${number(size)} or more found` : "Searching…";
}

/** @param {{follows: boolean, unseen: number, onClick: () => void}} properties */
function Follow({ follows, unseen, onClick }) {
  const says = follows ? "Following" : unseen > 0 ? `${number(unseen)} new` : "Follow";
  return html`<button type="button" class="chip" aria-pressed=${follows} title="f" onClick=${onClick}>${says}</button>`;
}

/** @param {{log: import("../session.js").Log}} properties */
function Filters({ log }) {
  const wanted = wantedKinds();
  const toggle = (/** @type {string} */ kind) => () =>
    kinds.push((wanted.includes(kind) ? wanted.filter((one) => one !== kind) : [...wanted, kind]).join());
  const counts = log.newest.value ? [...log.counts()].filter(([kind]) => kind !== "pruned") : []; // again for new ones
  return html`
    <div class="kinds" role="group" aria-label="Kinds">
      ${counts.map(
        ([kind, count]) => html`
          <button type="button" class="chip" aria-pressed=${wanted.includes(kind)} onClick=${toggle(kind)}>
            <${Mark} kind=${kind} />${visible(kind)} <span class="muted">${number(count)}</span>
          </button>
        `,
      )}
    </div>
  `;
}

/** @param {{kind: string}} properties */
function Mark({ kind }) {
  const { letter, tone } = lookOf(kind);
  return html`<span class=${`mark ${tone}`} aria-hidden="true">${letter}</span>`;
}

/** @param {{source: import("../source.js").Source<any>, active: any, follows: boolean, pause: () => void}} properties */
function EntryList({ source, active, follows, pause }) {
  const top = useRef(0);
  const isMoved = useRef(false); // by a person: what changes its height scrolls by itself
  const move = () => {
    isMoved.current = true;
  };
  const scroll = (/** @type {any} */ event) => {
    const { scrollTop, clientHeight, scrollHeight } = event.target;
    const isUp = scrollTop < top.current;
    const isAtEnd = scrollTop + clientHeight >= scrollHeight - 8;
    top.current = scrollTop;
    if (isAtEnd) isMoved.current = false;
    else if (isUp && isMoved.current) pause();
  };
  if (source.complete.value && !source.size.value) return html`<p class="empty">No entries match these filters.</p>`;
  return html`
    <div class="holder" onWheel=${move} onPointerDown=${move} onScrollCapture=${scroll}>
      <${List} name="entries" label="Entries" source=${source} active=${active} row=${cells} rowHeight=${28}
        follows=${follows} />
    </div>
  `;
}

/** @param {import("../log.js").Entry} entry */
function cells(entry) {
  const line = entry.line || (entry.moves ?? []).join(" "); // of a message without items
  return html`
    <div role="gridcell"><${Mark} kind=${entry.kind} /></div>
    <div role="gridcell" class="number muted">${number(entry.revision)}</div>
    <div role="gridcell"><b>${visible(entry.title)}</b> <span class="muted">${visible(line)}</span></div>
    <div role="gridcell" class="muted time">${entry.at > 0 && absolute(entry.at).slice(11)}</div>
  `;
}

/** @param {{base: string, session: any, lineage: any, at: number}} properties */
function Head({ base, session, lineage, at }) {
  const { id, environment, owner, status, phase } = session;
  return html`
    <div class="bar">
      <h1 class="data">${visible(id)}</h1>
      <span>${visible(environment)}</span>
      <span class=${`badge ${status}`}>${status}</span>
      ${phase && html`<span class=${`badge ${phase}`}>${visible(phase.replaceAll("_", " "))}</span>`}
      ${owner && html`<span class="muted">owner ${visible(owner)}</span>`}
      ${
        session.verdict &&
        html`<${Menu} title=${html`Reward <b><${Exact} value=${session.verdict.reward} /></b>`}>
          <${Verdict} verdict=${session.verdict} />
        <//>`
      }
      <${Lineage} base=${base} lineage=${lineage} />
      <${SessionActions} base=${base} session=${session} at=${at} />
    </div>
  `;
}

/** @param {{title: import("../html.js").Children, children?: import("../html.js").Children}} properties */
function Menu({ title, children }) {
  const press = (/** @type {any} */ event) => {
    if (event.key === "Escape") event.currentTarget.open = false;
  };
  return html`
    <details class="menu" onKeyDown=${press}>
      <summary class="chip">${title}</summary>
      <div class="sheet">${children}</div>
    </details>
  `;
}

/** @param {{base: string, lineage: any}} properties */
function Lineage({ base, lineage }) {
  if (!lineage) return null;
  const { ancestors, session, descendants } = lineage;
  const line = [...ancestors.slice(1), session].slice(0, ancestors.length);
  const parent = ancestors.at(-1);
  return html`
    ${
      parent &&
      html`<span class="muted">from
        ${line.map(({ parent }) => html` <${SessionLink} base=${base} id=${parent.session} at=${parent.revision} />`)}
      </span>
      <${Link} to=${view(`${pathOf(base, parent.id)}/compare`, { from: parent.revision, with: session.id })}>
        Compare with parent<//>`
    }
    ${descendants.length > 0 && html`<${Forks} base=${base} id=${session.id} forks=${descendants} />`}
  `;
}

/** @param {{base: string, id: string, forks: any[]}} properties */
function Forks({ base, id, forks }) {
  const left = forks.length - RELATIVES;
  return html`
    <${Menu} title=${plural(forks.length, "fork")}>
      ${forks.slice(0, RELATIVES).map(
        ({ id: fork, parent, reward }) => html`<div>
          <${SessionLink} base=${base} id=${fork} />
          <span class="muted"> from ${parent.session === id ? "revision" : visible(parent.session)} </span>
          <${Link} to=${view(pathOf(base, parent.session), { at: parent.revision })}>${number(parent.revision)}<//>
          ${reward !== null && html`<span class="muted"> reward <${Exact} value=${reward} /></span>`}
        </div>`,
      )}
      ${left > 0 && html`<p class="muted">and ${number(left)} more</p>`}
    <//>
  `;
}

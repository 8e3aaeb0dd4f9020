/** One revision of a session: what changed, the state, the call, the conversation up to it, and the entry as it is. */
import { Chat } from "./chat.js";
import { Differences } from "./difference.js";
import { html, useEffect, useLayoutEffect, useSignal } from "./html.js";
import { Problem } from "./load.js";
import { Link, view } from "./route.js";
import { pathOf, SessionLink, useLatest } from "./session.js";
import { absolute, ago, number, visible } from "./text.js";
import { Tree } from "./tree.js";
import { Value } from "./value.js";

/** @typedef {import("./log.js").Entry} Entry */
/** @typedef {{entry: Entry, state?: any, talk?: {items: any[], more: boolean}}} Known */

/** Tabs by their names in the URL. */
export const TABS = [
  ["changes", "Changes"],
  ["state", "State"],
  ["call", "Input and output"],
  ["chat", "Conversation"],
  ["raw", "Raw"],
];

const TALK = 60; // entries of a conversation that are read at first
const FIELDS = ["input", "output", "question", "error", "verdict"];

/**
 * @typedef {object} Properties
 * @property {string} base
 * @property {string} id
 * @property {import("./session.js").Log} log
 * @property {import("./session.js").Entries} entries those of the list, which may have the one that is wanted
 * @property {number} at
 * @property {ReturnType<typeof import("./route.js").parameter>} tab
 * @property {any[]} forks those that were made here
 */

/** @param {Properties} properties */
export function Revision({ base, id, log, entries, at, tab, forks }) {
  const again = useSignal(0);
  const most = useSignal(TALK);
  const [chosen] = TABS.find(([name]) => name === tab.value) ?? TABS[0];
  /** @returns {Promise<Known>} */
  const read = async () => {
    const held = entries.source.at(entries.indexOf(at));
    const entry = held?.revision === at && held.kind !== "pruned" ? held : await log.entry(at);
    const isGone = entry.kind === "pruned" && entry.until > at; // of the last one that was pruned the state is there
    if (chosen === "state" && !isGone) return { entry, state: (await log.read("state", { at })).state };
    return chosen === "chat" ? { entry, talk: await log.conversation(at, most.value) } : { entry };
  };
  const kind = chosen === "state" ? chosen : chosen === "chat" ? `chat ${most.value}` : "";
  const { value, error } = useLatest(`${at} ${kind} ${again.value}`, read);
  useEffect(() => {
    most.value = TALK;
  }, [at]);
  return html`
    <section class="revision" aria-label="Revision">
      ${value && html`<${Title} base=${base} id=${id} entry=${value.entry} forks=${forks} />`}
      <${Tabs} tab=${tab} chosen=${chosen} />
      <div class="scroll" role="tabpanel" id="panel" aria-labelledby=${`tab-${chosen}`} tabindex="0">
        ${error && html`<${Problem} error=${error} retry=${() => again.value++} />`}
        ${value && !error && html`<${Panel} tab=${chosen} ...${value} earlier=${() => (most.value += 4 * TALK)} />`}
      </div>
    </section>
  `;
}

/** @param {{base: string, id: string, entry: Entry, forks: any[]}} properties */
function Title({ base, id, entry, forks }) {
  const { revision, kind, at, by, person } = entry;
  const who = person ?? (kind === "message" ? undefined : by);
  const compare = view(`${pathOf(base, id)}/compare`, { from: revision - 1, to: revision });
  return html`
    <div class="bar">
      <h2>Revision ${number(revision)}</h2>
      <span>${visible(kind)} ${kind !== entry.title && html`<b>${visible(entry.title)}</b>`}</span>
      ${who && html`<span class="muted">by ${visible(who)}</span>`}
      ${at > 0 && html`<time class="muted" title=${absolute(at)}>${ago(at)}</time>`}
      ${revision > 1 && html`<${Link} to=${compare}>Compare<//>`}
      ${forks.length > 0 && html`<span class="muted">forked here:</span>`}
      ${forks.slice(0, 5).map((fork) => html`<${SessionLink} base=${base} id=${fork.id} />`)}
    </div>
  `;
}

/** @param {{tab: Properties["tab"], chosen: string}} properties */
function Tabs({ tab, chosen }) {
  const press = (/** @type {KeyboardEvent} */ event) => {
    const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!by) return;
    const index = TABS.findIndex(([name]) => name === chosen);
    const [next] = TABS[(index + by + TABS.length) % TABS.length];
    tab.value = next;
    document.getElementById(`tab-${next}`)?.focus();
  };
  return html`
    <div class="tabs" role="tablist" aria-label="Views" onKeyDown=${press}>
      ${TABS.map(
        ([name, title]) => html`
          <button type="button" role="tab" id=${`tab-${name}`} aria-controls="panel" aria-selected=${name === chosen}
            tabindex=${name === chosen ? 0 : -1} onClick=${() => (tab.value = name)}>${title}</button>
        `,
      )}
    </div>
  `;
}

/** @param {Known & {tab: string, earlier: () => void}} properties */
function Panel({ tab, entry, state, talk, earlier }) {
  if (tab === "chat") {
    return talk ? html`<${Talk} ...${talk} at=${entry.revision} earlier=${earlier} />` : html`<${Waiting} />`;
  }
  if (tab === "state" && state !== undefined) {
    return html`<${Tree} value=${state} changes=${entry.changes} label=${`State at revision ${entry.revision}`} />`;
  }
  if (entry.kind === "pruned") {
    return html`<p class="empty">Revisions ${number(entry.first)} to ${number(entry.until)} were pruned.</p>`;
  }
  if (tab === "state") return html`<${Waiting} />`;
  if (tab === "call") return html`<${Fields} entry=${entry} />`;
  if (tab === "raw") return html`<${Value} key=${entry.revision} value=${entry} />`;
  if (!entry.changes.length) return html`<p class="empty">Nothing changed in the state at this revision.</p>`;
  return html`<${Differences} key=${entry.revision} changes=${entry.changes} />`;
}

const Waiting = () => html`<p class="muted">Loading…</p>`;

/**
 * The conversation up to a revision, scrolled to its end.
 * @param {{items: any[], more: boolean, at: number, earlier: () => void}} properties
 */
function Talk({ items, more, at, earlier }) {
  useLayoutEffect(() => {
    const panel = /** @type {Element} */ (document.getElementById("panel"));
    panel.scrollTop = panel.scrollHeight;
  }, [at]);
  return html`
    ${more && html`<button type="button" onClick=${earlier}>Earlier</button>`}
    ${items.length ? html`<${Chat} items=${items} />` : html`<p class="empty">Nothing was said up to this revision.</p>`}
  `;
}

/** What went in and came out. @param {{entry: Entry}} properties */
function Fields({ entry }) {
  const given = FIELDS.filter((name) => entry[name] !== undefined);
  if (entry.items) return html`<${Chat} items=${entry.items} />`;
  if (!given.length) return html`<p class="empty">This entry has no input or output.</p>`;
  return given.map((name) => html`<h3>${name}</h3><${Value} key=${entry.revision} value=${entry[name]} />`);
}

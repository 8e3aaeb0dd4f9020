/** The store as a whole, and whether the server is well. */
import { open } from "../api.js";
import { html, useSignal } from "../html.js";
import { useKeys } from "../keys.js";
import { Problem, useLoad, usePoll } from "../load.js";
import { Link, useTitle, view } from "../route.js";
import { pathOf } from "../session.js";
import { ago, bytes, number, plural, visible } from "../text.js";

const STATUSES = ["live", "closed", "expired"];

export default function Store() {
  useTitle("Store");
  const after = useSignal(0);
  const { value, error, retry } = usePoll("/store", { after: after.value }, (found) => !found?.complete);
  const health = useLoad((abort) => open("/ready", { signal: abort }), []);
  const found = value.value;
  const again = () => {
    after.value = found?.at ?? 0;
    retry();
    health.retry();
  };
  useKeys("Store", { r: ["Measure again", again] });
  return html`
    <div class="screen store">
      <div class="bar">
        <h1>Store</h1>
        ${health.value.value && !health.error.value && html`<span class="badge live">ready</span>`}
        <button type="button" onClick=${again}>Measure again</button>
        <span class="muted" role="status">${found && told(found)}</span>
      </div>
      ${health.error.value && html`<${Problem} error=${health.error.value} retry=${health.retry} />`}
      ${error.value && html`<${Problem} error=${error.value} retry=${retry} />`}
      ${found && html`<${Contents} found=${found} />`}
    </div>
  `;
}

/** @param {Record<string, any>} found */
function told({ complete, counted, at }) {
  return complete ? `Measured ${ago(at)}` : `Measuring: ${plural(counted, "session")} so far`;
}

/**
 * The bytes of a whole store: of its file or objects, or else of what is in it.
 * @param {Record<string, {bytes: number}>} sizes
 */
export function sizeOf(sizes) {
  const { sessions, entries, snapshots, blobs, ...own } = sizes;
  const parts = Object.values(Object.keys(own).length ? own : sizes);
  return parts.reduce((sum, size) => sum + size.bytes, 0);
}

/** @param {{found: Record<string, any>}} properties */
function Contents({ found }) {
  const { url, stateroom, live, sizes = {}, sessions = {}, largest = [] } = found;
  const whole = sizeOf(sizes);
  const facts = [
    ["Store", html`<code>${visible(url)}</code>`],
    ["Live sessions", html`<span data-count="live">${number(live)}</span>`],
    ["Size", found.at && html`<span title=${`${whole} bytes`}>${bytes(whole)}</span>`],
    ["Stateroom", visible(stateroom)],
  ];
  const cell = (/** @type {any} */ value) => html`<td class="number" title=${value}>${number(value ?? 0)}</td>`;
  const counts = Object.entries(sessions).map(
    ([name, by]) => html`<tr>
      <th scope="row"><${Link} to=${view("/sessions", { environment: name })}>${visible(name)}<//></th>
      ${STATUSES.map((status) => cell(by[status]))}</tr>`,
  );
  const kinds = Object.entries(sizes).map(
    ([kind, { rows, bytes: size }]) =>
      html`<tr><th scope="row">${visible(kind)}</th>${cell(rows)}<td class="number" title=${size}>${bytes(size)}</td></tr>`,
  );
  const large = largest.map(
    (/** @type {any} */ { id, environment, rows, bytes: size }) => html`<tr>
      <th scope="row"><${Link} to=${pathOf("", id)} class="data">${visible(id)}<//></th>
      <td>${visible(environment)}</td>${cell(rows)}<td class="number" title=${size}>${bytes(size)}</td></tr>`,
  );
  return html`
    <dl class="figures">
      ${facts.map(([name, value]) => value && html`<div><dt>${name}</dt><dd>${value}</dd></div>`)}
    </dl>
    <div class="overview">
      <${Table} title="Sessions" columns=${["Environment", ...STATUSES]} rows=${counts} />
      <${Table} title="Sizes" columns=${["Kind", "number", "size"]} rows=${kinds} />
      <${Table} title="Largest sessions" columns=${["Session", "environment", "entries", "size"]} rows=${large} />
    </div>
  `;
}

/** @param {{title: string, columns: string[], rows: any[]}} properties */
function Table({ title, columns, rows }) {
  if (!rows.length) return null;
  return html`
    <section><h2>${title}</h2>
      <table aria-label=${title}>
        <thead><tr>${columns.map((one) => html`<th scope="col" class=${one.toLowerCase()}>${one}</th>`)}</tr></thead>
        <tbody>${rows}</tbody>
      </table>
    </section>
  `;
}

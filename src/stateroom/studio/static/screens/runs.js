/** All runs below a folder; those that grow are followed. */
import { Filters, sortHeaders, TextFilter } from "../filters.js";
import { html, useMemo, useSignal } from "../html.js";
import { useListKeys } from "../keys.js";
import { List } from "../list.js";
import { Problem, usePoll } from "../load.js";
import { Link, navigate, query, useTitle } from "../route.js";
import { useServed } from "../served.js";
import { baseOf } from "../session.js";
import { fixedSource } from "../source.js";
import { absolute, ago, number, plural, visible } from "../text.js";
import { Exact } from "../value.js";

/** @typedef {Record<string, any>} Run */

/** @type {Record<string, (run: Run) => any>} */
const VALUES = {
  name: (run) => run.name,
  environment: (run) => run.environment,
  model: (run) => run.model,
  done: (run) => run.done / run.episodes,
  failed: (run) => run.failed,
  reward: (run) => run.metrics["mean/reward"],
  pass: (run) => run.metrics["pass@1"],
  started: (run) => Date.parse(run.started) / 1000,
};
const COLUMNS = /** @type {[string, string][]} */ ([
  ["name", "Run"],
  ["environment", "Environment"],
  ["model", "Model"],
  ["done", "Done"],
  ["failed", "Failed"],
  ["reward", "Reward"],
  ["pass", "pass@1"],
  ["started", "Started"],
]);
const NEWEST = "-started";

/**
 * The runs with a text in their name, environment or model, sorted; those without a value come last.
 * @param {Run[]} runs
 * @param {string} text
 * @param {string} sort a column, with `-` before it for the highest first
 */
export function chosen(runs, text, sort) {
  const value = VALUES[sort.replace("-", "")] ?? VALUES.started;
  const sign = sort.startsWith("-") ? -1 : 1;
  const isMissing = (/** @type {any} */ one) => one === null || one === undefined || Number.isNaN(one);
  const wanted = text.toLowerCase();
  const fits = (/** @type {Run} */ run) =>
    [run.name, run.environment, run.model].some((one) => one?.toLowerCase().includes(wanted));
  return runs.filter(fits).sort((one, other) => {
    const [a, b] = [value(one), value(other)];
    if (isMissing(a) || isMissing(b)) return Number(isMissing(a)) - Number(isMissing(b));
    return a < b ? -sign : a > b ? sign : 0;
  });
}

export default function Runs() {
  useTitle("Runs");
  const { value, error, retry } = useServed();
  if (error.value) return html`<${Problem} error=${error.value} retry=${retry} />`;
  if (!value.value) return null;
  if (value.value.runs) return html`<${RunList} folder=${value.value.runs} />`;
  return html`
    <div class="screen">
      <div class="bar"><h1>Runs</h1></div>
      <p class="empty">Studio has no folder of runs. Start it with <code>stateroom studio --runs DIR</code>.</p>
    </div>
  `;
}

/** @param {{folder: string}} properties */
function RunList({ folder }) {
  const { value, error, retry } = usePoll("/runs");
  const active = useSignal(0);
  const [text, sort] = [query.value.get("text") ?? "", query.value.get("sort") ?? NEWEST];
  const runs = value.value?.runs;
  const source = useMemo(() => fixedSource(chosen(runs ?? [], text, sort)), [runs, text, sort]);
  const open = (/** @type {Run} */ run) => navigate(baseOf(run.name));
  useListKeys("Runs", "run", source, active, open, { r: ["Read the list again", retry] });
  const size = source.size.value;
  const nothing = runs?.length
    ? "No runs match the filter."
    : `There are no runs in ${folder} yet. New ones appear here.`;
  return html`
    <div class="screen">
      <div class="bar">
        <h1>Runs</h1>
        <span class="muted" role="status">${runs && plural(size, "run")}</span>
      </div>
      <${Filters} label="Filter the runs" names=${["text"]}>
        <${TextFilter} name="text" label="Find" />
      <//>
      ${error.value && html`<${Problem} error=${error.value} retry=${retry} />`}
      ${runs && !size && html`<p class="empty">${visible(nothing)}</p>`}
      ${
        size > 0 &&
        html`<${List} name="runs" label="Runs" source=${source} active=${active} row=${cells}
          header=${sortHeaders(COLUMNS, NEWEST)} onOpen=${open} />`
      }
    </div>
  `;
}

/** @param {{run: Run}} properties */
export function Done({ run }) {
  const { done, episodes, growing } = run;
  return html`
    <progress max=${episodes || 1} value=${done} aria-label=${`${done} of ${episodes} episodes are done`}></progress>
    <span>${number(done)}/${number(episodes)}</span>
    ${growing && html`<span class="badge executing">growing</span>`}
  `;
}

/** @param {Run} run */
function cells(run) {
  const { name, environment, model, failed, metrics, warnings } = run;
  const started = VALUES.started(run);
  return html`
    <div role="gridcell" class="name"><${Link} to=${baseOf(name)} tabindex="-1">${visible(name)}<//>
      ${warnings.length > 0 && html` <span class="badge changed" title=${visible(warnings.join("\n"))}>damaged</span>`}</div>
    <div role="gridcell" class="environment">${environment && visible(environment)}</div>
    <div role="gridcell" class="model">${model && visible(model)}</div>
    <div role="gridcell" class="done"><${Done} run=${run} /></div>
    <div role="gridcell" class=${failed ? "failed number error" : "failed number"}>${number(failed)}</div>
    <div role="gridcell" class="reward number">
      <${Exact} value=${metrics["mean/reward"]} error=${metrics["stderr/reward"]} /></div>
    <div role="gridcell" class="pass number"><${Exact} value=${metrics["pass@1"]} /></div>
    <div role="gridcell" class="started"><time title=${absolute(started)}>${ago(started)}</time></div>
  `;
}

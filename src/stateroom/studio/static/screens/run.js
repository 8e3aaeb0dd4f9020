/** One run: its metrics, rewards and failures, and its episodes as a list or as tasks by rollouts. */
import { get } from "../api.js";
import { ChoiceFilter, Filters, sortHeaders, TextFilter } from "../filters.js";
import { filterOf, Histogram, spanOf } from "../histogram.js";
import { html, useEffect, useSignal } from "../html.js";
import { useListKeys } from "../keys.js";
import { List } from "../list.js";
import { Problem, useLoad, usePoll } from "../load.js";
import { Matrix } from "../matrix.js";
import { Link, navigate, parameter, path, query, useTitle, view } from "../route.js";
import { baseOf, pathOf } from "../session.js";
import { fixedSource, RangeSource } from "../source.js";
import { number, plural, visible } from "../text.js";
import { Exact } from "../value.js";
import { Done } from "./runs.js";

/** @typedef {Record<string, any>} Episode */
/** @typedef {import("../histogram.js").Bar} Bar */

const NAMES = ["task", "low", "below", "high", "failed", "failure", "tool"];
const PAGE = 200;
const COLUMNS = /** @type {[string, string][]} */ ([
  ["task", "Task"],
  ["rollout", "Rollout"],
  ["reward", "Reward"],
  ["failure", "Failure"],
  ["tool_calls", "Calls"],
  ["turns", "Turns"],
  ["tokens", "Tokens"],
  ["seconds", "Seconds"],
  ["cost", "Cost"],
  ["session", "Session"],
  ["line", "Row"],
]);

/** The address of this view with other parameters. @param {Record<string, any>} changes */
const changed = (changes) => view(path.value, { ...Object.fromEntries(query.value), ...changes });

/**
 * The view of an episode's row.
 * @param {string} place
 * @param {Episode} one
 */
const rowOf = (place, { line, file }) => view(`${place}/rollouts/${line}`, { file: file === "rollouts" ? "" : file });

/** @param {{run: string}} properties */
export default function RunScreen({ run }) {
  useTitle(run);
  const place = baseOf(run);
  const { value, error, retry } = usePoll(place);
  const tab = parameter("tab");
  const about = value.value;
  const to = (/** @type {Episode} */ one) =>
    one.session && about?.store ? pathOf(place, one.session) : rowOf(place, one);
  const ofTask = (/** @type {number} */ task) => view(place, { task });
  const rewards = about?.histogram.flatMap((/** @type {Bar} */ { low, high }) => [low, high]) ?? [];
  const scale = [Math.min(0, ...rewards), Math.max(about?.solved_threshold ?? 1, ...rewards)];
  /** @type {Record<string, () => any>} */
  const shown = {
    "": () => html`<${Episodes} place=${place} to=${to} failures=${about?.failures} retry=${retry} />`,
    tasks: () => html`<${Matrix} path=${place} scale=${scale} viewOf=${to} viewOfTask=${ofTask} />`,
    metrics: () => html`<${Metrics} metrics=${about?.metrics ?? {}} />`,
  };
  if (error.value && !about) return html`<${Problem} error=${error.value} retry=${retry} />`;
  return html`
    <div class="screen run">
      <div class="bar">
        <h1>${visible(run)}</h1>
        ${about && [about.environment, about.model].map((one) => one && html`<span class="badge">${visible(one)}</span>`)}
        ${about && html`<${Done} run=${about} />`}
      </div>
      ${error.value && html`<${Problem} error=${error.value} retry=${retry} />`}
      ${about && html`<${Overview} about=${about} />`}
      <div class="bar" role="group" aria-label="Show">
        ${Object.keys(shown).map((name) => html`<button type="button" class="chip" aria-pressed=${tab.value === name} onClick=${() => tab.push(name)}>${name || "episodes"}</button>`)}
      </div>
      ${(shown[tab.value] ?? shown[""])()}
    </div>
  `;
}

/** @param {{about: Record<string, any>}} properties */
function Overview({ about }) {
  const { histogram, failures, warnings, progress } = about;
  const [low, end] = [query.value.get("low"), query.value.get("below") ?? query.value.get("high")];
  const chosen = spanOf(histogram, low === null || end === null ? null : [Number(low), Number(end)]);
  const choose = (/** @type {import("../histogram.js").Span | null} */ span) =>
    navigate(changed({ tab: null, ...filterOf(histogram, span) }));
  return html`
    ${warnings.map((/** @type {string} */ one) => html`<p class="warning" role="status">${visible(one)}</p>`)}
    ${
      progress.indexed < progress.size &&
      html`<label class="bar">Indexing <progress max=${progress.size} value=${progress.indexed}></progress></label>`
    }
    <${Figures} about=${about} />
    <div class="overview">
      ${
        histogram.length > 0 &&
        html`<section><h2>Rewards</h2>
          <${Histogram} bars=${histogram} one="episode" label="Histogram of rewards" chosen=${chosen} onChoose=${choose} />
        </section>`
      }
      <${Bars} title="Failures by class" name="failure" counts=${failures.class} />
      <${Bars} title="Failed calls by tool" name="tool" counts=${failures.tool} />
    </div>
  `;
}

/** @param {{metrics: Record<string, number>}} properties */
function Metrics({ metrics }) {
  return html`
    <div class="scroll" tabindex="0" role="region" aria-label="All metrics"><table>
      ${Object.entries(metrics).map(([name, value]) => html`<tr><th scope="row">${visible(name)}</th><td class="number"><${Exact} value=${value} /></td></tr>`)}
    </table></div>
  `;
}

/** @param {{about: Record<string, any>}} properties */
function Figures({ about }) {
  const { metrics, failed } = about;
  const shown = [
    ["Mean reward", metrics["mean/reward"], metrics["stderr/reward"]],
    ...Object.entries(about.pass).map(([k, value]) => [`pass@${k}`, value, metrics[`stderr/pass@${k}`]]),
    ["Failed", failed],
    ["Mean tool calls", metrics["mean/tool_calls"], metrics["stderr/tool_calls"]],
    ["Mean tokens", metrics["mean/total_tokens"], metrics["stderr/total_tokens"]],
  ].filter(([, value]) => value !== undefined);
  return html`
    <dl class="figures">
      ${shown.map(([title, value, error]) => html`<div><dt>${title}</dt><dd><${Exact} value=${value} error=${error} /></dd></div>`)}
    </dl>
  `;
}

/**
 * Counts as bars, each of which leads to its episodes.
 * @param {{title: string, name: string, counts: Record<string, number>}} properties
 */
function Bars({ title, name, counts }) {
  const most = Math.max(...Object.values(counts));
  const rows = Object.entries(counts).sort(([, one], [, other]) => other - one);
  if (!rows.length) return null;
  return html`
    <section><h2>${title}</h2>
      <ul class="bars">
        ${rows.map(
          ([key, count]) => html`<li style=${{ "--part": count / most }}>
            <${Link} to=${changed({ tab: null, [name]: key })}>${visible(key)}<//><span>${number(count)}</span></li>`,
        )}
      </ul>
    </section>
  `;
}

/**
 * The episodes that pass filters, read page by page.
 * @param {string} place
 * @param {Record<string, any>} wanted
 * @param {AbortSignal} abort
 */
async function sourceOf(place, wanted, abort) {
  const read = (/** @type {number} */ offset, /** @type {AbortSignal | undefined} */ stop = undefined) =>
    get(`${place}/rollouts`, { ...wanted, offset, limit: PAGE }, stop);
  const first = await read(0, abort);
  let given = /** @type {Episode[] | null} */ (first.rollouts);
  const source = new RangeSource(
    async (offset) => {
      const rows = (!offset && given) || (await read(offset)).rollouts;
      given = null;
      return rows;
    },
    first.total,
    PAGE,
  );
  await source.need(0, 0);
  return { source, version: first.version };
}

/** @param {{place: string, to: (one: Episode) => string, failures: any, retry: () => void}} properties */
function Episodes({ place, to, failures, retry }) {
  const sort = query.value.get("sort") ?? "line";
  const wanted = {
    ...Object.fromEntries(NAMES.map((name) => [name, query.value.get(name)])),
    sort: sort.replace("-", ""),
    order: sort.startsWith("-") ? "descending" : "ascending",
  };
  const key = JSON.stringify(wanted);
  const loaded = useLoad((abort) => sourceOf(place, wanted, abort), [key]);
  const newest = usePoll(`${place}/rollouts`, { ...wanted, limit: 1 });
  const source = loaded.value.value?.source ?? NONE;
  useEffect(() => {
    const [shown, known] = [loaded.value.value, newest.value.value];
    if (loaded.loading.value || !shown || !known || shown.version === known.version) return;
    shown.version = known.version;
    shown.source.renew(known.total);
  }, [newest.value.value, loaded.value.value, loaded.loading.value]);
  const active = useSignal(0);
  const open = (/** @type {Episode} */ one) => navigate(to(one));
  const again = () => {
    loaded.retry();
    retry();
  };
  useListKeys("Episodes", "episode", source, active, open, { r: ["Read the run again", again] });
  const error = loaded.error.value ?? source.error.value;
  const size = source.size.value;
  return html`
    <${EpisodeFilters} failures=${failures} />
    ${error && html`<${Problem} error=${error} retry=${() => (source.error.value ? source.retry() : again())} />`}
    <p class="muted" role="status">${loaded.value.value && plural(size, "episode")}</p>
    ${
      size > 0 &&
      html`<${List} name="episodes" label="Episodes" source=${source} active=${active} onOpen=${open}
        header=${sortHeaders(COLUMNS, "line")} row=${(/** @type {Episode} */ one) => cells(one, to)} />`
    }
  `;
}

const NONE = /** @type {any} */ ({ ...fixedSource([]), retry: () => {} });

/** @param {{failures: Record<string, Record<string, number>> | undefined}} properties */
function EpisodeFilters({ failures }) {
  return html`
    <${Filters} label="Filter the episodes" names=${NAMES}>
      <${TextFilter} name="task" label="Task" type="number" />
      <${TextFilter} name="low" label="Reward from" type="number" />
      <${TextFilter} name="below" label="Reward below" type="number" />
      <${TextFilter} name="high" label="Reward to" type="number" />
      <${ChoiceFilter} name="failed" label="Failed" options=${[["", "any"], ["true", "yes"], ["false", "no"]]} />
      <${TextFilter} name="failure" label="Failure" suggestions=${Object.keys(failures?.class ?? {})} />
      <${TextFilter} name="tool" label="Failed tool" suggestions=${Object.keys(failures?.tool ?? {})} />
    <//>
  `;
}

/**
 * @param {Episode} one
 * @param {(one: Episode) => string} to
 */
function cells(one, to) {
  const figure = (/** @type {string} */ name) =>
    html`<div role="gridcell" class=${`${name} number`}>${one[name] !== null && html`<${Exact} value=${one[name]} />`}</div>`;
  return html`
    <div role="gridcell" class="task number"><${Link} to=${to(one)} tabindex="-1">${one.task}<//></div>
    <div role="gridcell" class="rollout number">${one.rollout}${one.node && ` ${visible(one.node)}`}</div>
    ${figure("reward")}
    <div role="gridcell" class="failure">${one.failure !== null && html`<span class="badge failed">${visible(one.failure)}</span>`}</div>
    ${["tool_calls", "turns", "tokens", "seconds", "cost"].map(figure)}
    <div role="gridcell" class="session data">${one.session !== null && html`<${Link} to=${to(one)} tabindex="-1">${visible(one.session)}<//>`}</div>
    <div role="gridcell" class="line"><${Link} to=${rowOf(path.value, one)} tabindex="-1">${one.file === "rollouts" ? "" : "failure "}${one.line}<//></div>
  `;
}

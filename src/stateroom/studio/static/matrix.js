/** The matrix of a run: a row for each task, a column for each rollout, coloured by reward. */
import { html } from "./html.js";
import { useKeys } from "./keys.js";
import { Problem, usePoll } from "./load.js";
import { Link, parameter } from "./route.js";
import { number, visible } from "./text.js";

const TASKS = 50; // in one page

/** @typedef {Record<string, any>} Episode */

/**
 * @param {object} properties
 * @param {string} properties.path of the run's API
 * @param {number[]} properties.scale the reward that is not coloured, and the one that is most
 * @param {(episode: Episode) => string} properties.viewOf
 * @param {(task: number) => string} properties.viewOfTask
 */
export function Matrix({ path, scale, viewOf, viewOfTask }) {
  const at = parameter("tasks", "0");
  const offset = Number(at.value) || 0;
  const { value, error, retry } = usePoll(`${path}/matrix`, { offset, limit: TASKS });
  const { tasks = [], total = 0 } = value.value ?? {};
  const turn = (/** @type {number} */ by) => () => {
    if (offset + by >= 0 && offset + by < total) at.push(String(offset + by));
  };
  useKeys("Tasks", { n: ["Next tasks", turn(TASKS)], p: ["Previous tasks", turn(-TASKS)] });
  if (error.value) return html`<${Problem} error=${error.value} retry=${retry} />`;
  const rollouts = columnsOf(tasks);
  return html`
    <div class="scroll" tabindex="0" role="region" aria-label="Tasks and rollouts">
      <table class="matrix">
        <thead><tr><th scope="col">Task</th>${rollouts.map((one) => html`<th scope="col">${one}</th>`)}</tr></thead>
        <tbody>
          ${tasks.map(
            (/** @type {any} */ row) => html`
              <tr key=${row.task}>
                <th scope="row"><${Link} to=${viewOfTask(row.task)}>${row.task}<//></th>
                ${rollouts.map(
                  (rollout) =>
                    html`<td>${row.rollouts
                      .filter((/** @type {Episode} */ one) => one.rollout === rollout)
                      .map(
                        (/** @type {Episode} */ one) =>
                          html`<${Cell} episode=${one} scale=${scale} to=${viewOf(one)} />`,
                      )}</td>`,
                )}
                ${
                  row.episodes > row.rollouts.length &&
                  html`<td><${Link} to=${viewOfTask(row.task)}>${number(row.episodes - row.rollouts.length)} more<//></td>`
                }
              </tr>
            `,
          )}
        </tbody>
      </table>
    </div>
    ${
      total > TASKS &&
      html`<div class="bar">
        <button type="button" disabled=${!offset} onClick=${turn(-TASKS)}>Previous</button>
        <span class="muted" role="status">Tasks ${number(offset + 1)} to
          ${` ${number(Math.min(offset + TASKS, total))} of ${number(total)}`}</span>
        <button type="button" disabled=${offset + TASKS >= total} onClick=${turn(TASKS)}>Next</button>
      </div>`
    }
  `;
}

/**
 * The rollouts that some tasks have, in order.
 * @param {{rollouts: Episode[]}[]} tasks
 * @returns {number[]}
 */
export function columnsOf(tasks) {
  const found = new Set(tasks.flatMap((row) => row.rollouts.map((one) => one.rollout)));
  return [...found].sort((one, other) => Number(one) - Number(other));
}

/**
 * How much a reward is coloured, from 0 to 1.
 * @param {number | null} reward
 * @param {number[]} scale
 */
export function levelOf(reward, [low, high]) {
  return Math.max(0, Math.min(1, ((reward ?? low) - low) / (high - low || 1)));
}

/** @param {{episode: Episode, scale: number[], to: string}} properties */
function Cell({ episode, scale, to }) {
  const { task, rollout, reward, failure } = episode;
  const told = failure === null ? `reward ${reward}` : `failed, ${failure}`;
  const label = visible(`Task ${task}, rollout ${rollout}: ${told}`);
  return html`
    <${Link} to=${to} class=${failure === null ? "cell" : "cell failed"} aria-label=${label} title=${label}
      style=${{ "--level": levelOf(reward, scale) }}>
      ${failure === null ? (reward === null ? "–" : Math.round(reward * 100) / 100) : "✗"}<//>
  `;
}

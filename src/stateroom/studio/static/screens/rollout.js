/** One row of a run's files: the conversation, the reward or the error, and the whole row. */
import { get } from "../api.js";
import { Chat } from "../chat.js";
import { html, useMemo } from "../html.js";
import { useKeys } from "../keys.js";
import { Problem, useLoad } from "../load.js";
import { itemsOfTask } from "../log.js";
import { Link, navigate, query, useTitle } from "../route.js";
import { baseOf, pathOf } from "../session.js";
import { visible } from "../text.js";
import { Tree } from "../tree.js";
import { Exact } from "../value.js";

/** @param {{run: string, line: string}} properties */
export default function Rollout({ run, line }) {
  useTitle(`${run}, row ${line}`);
  const file = query.value.get("file");
  const place = baseOf(run);
  const { value, error, retry } = useLoad(
    (abort) => get(`${place}/rollouts/${encodeURIComponent(line)}`, { file }, abort),
    [place, line, file],
  );
  useKeys("Row", { u: ["Up to the run", () => navigate(place)] });
  const row = value.value;
  const items = useMemo(() => [itemsOfTask(row), row?.response?.output].filter(Array.isArray).flat(), [row]);
  if (error.value) return html`<${Problem} error=${error.value} retry=${retry} />`;
  if (!row) return null;
  const failure = row._ng_failure_class;
  return html`
    <div class="screen">
      <div class="bar">
        <${Link} to=${place}>${visible(run)}<//>
        <h1>Task ${visible(row._ng_task_index ?? line)}, rollout ${visible(row._ng_rollout_index ?? 0)}</h1>
        ${failure === undefined ? html`Reward <${Exact} value=${row.reward} />` : html`<span class="badge failed">${visible(failure)}</span>`}
        ${
          typeof row._stateroom_session === "string" &&
          html`<${Link} to=${pathOf(place, row._stateroom_session)}>Session<//>`
        }
      </div>
      ${[row.reason, row.error].map((one) => typeof one === "string" && one && html`<p class="data">${visible(one)}</p>`)}
      <div class="split">
        <section class="scroll" tabindex="0" aria-label="Conversation">
          ${items.length ? html`<${Chat} items=${items} />` : html`<p class="empty">The row has no conversation.</p>`}
        </section>
        <section aria-label="Row"><${Tree} value=${row} label="Row" /></section>
      </div>
    </div>
  `;
}

/** What differs between two revisions of a session, or of two sessions. */
import { get } from "../api.js";
import { Differences } from "../difference.js";
import { html } from "../html.js";
import { useKeys } from "../keys.js";
import { Problem, useLoad } from "../load.js";
import { navigate, parameter, useTitle, view } from "../route.js";
import { baseOf, pathOf, SessionLink } from "../session.js";
import { plural } from "../text.js";

const from = parameter("from", "1");
const to = parameter("to");
const other = parameter("with");

/** @param {{id: string, run?: string}} properties */
export default function Compare({ id, run }) {
  useTitle(`Compare ${id}`);
  const base = baseOf(run);
  const asked = { from: from.value, to: to.value, with: other.value };
  const { value, error, retry } = useLoad(
    (abort) => get(`${pathOf(base, id)}/diff`, asked, abort),
    Object.values(asked),
  );
  const found = value.value;
  const swap = () => {
    const second = other.value || id;
    if (!found) return;
    navigate(
      view(`${pathOf(base, second)}/compare`, { from: found.to, to: from.value, with: second === id ? "" : id }),
    );
  };
  useKeys("Compare", { x: ["Swap the two", swap], r: ["Compare again", retry] });
  return html`
    <div class="screen">
      <div class="bar">
        <h1>Compare</h1>
        <${SessionLink} base=${base} id=${id} at=${from.value} />
        <span aria-hidden="true">→</span>
        <${SessionLink} base=${base} id=${other.value || id} at=${found?.to ?? to.value} />
        <button type="button" class="quiet" onClick=${swap}>Swap</button>
        <span class="muted" role="status">${found && !error.value && plural(found.differences.length, "difference")}</span>
      </div>
      <form class="filters" role="search" aria-label="What to compare"
        onSubmit=${(/** @type {Event} */ event) => event.preventDefault()}>
        <${Choice} name="From revision" chosen=${from} />
        <${Choice} name="To revision" chosen=${to} hint="newest" />
        <${Choice} name="Of session" chosen=${other} hint="the same" type="text" />
      </form>
      ${error.value && html`<${Problem} error=${error.value} retry=${retry} />`}
      ${
        found &&
        !error.value &&
        html`<div class="scroll" tabindex="0">
          ${found.differences.length ? html`<${Differences} changes=${found.differences} />` : html`<p class="empty">Both states are the same.</p>`}
        </div>`
      }
    </div>
  `;
}

/** @param {{name: string, chosen: typeof from, hint?: string, type?: string}} properties */
function Choice({ name, chosen, hint = "", type = "number" }) {
  const id = name.replaceAll(" ", "-");
  return html`
    <div class="filter">
      <label for=${id}>${name}</label>
      <input id=${id} type=${type} min="1" placeholder=${hint} value=${chosen.value} autocomplete="off"
        spellcheck=${false} onChange=${(/** @type {any} */ event) => chosen.push(event.target.value)} />
    </div>
  `;
}

/** Filters and sorts of a list. Each is a parameter of the URL. */
import { html } from "./html.js";
import { Link, parameter, path, query } from "./route.js";

/** @param {{name: string, label: string, type?: string, suggestions?: string[]}} properties */
export function TextFilter({ name, label, type = "text", suggestions = [] }) {
  const id = `filter-${name}`;
  const given = parameter(name);
  return html`
    <div class="filter">
      <label for=${id}>${label}</label>
      <input id=${id} type=${type} step="any" value=${given.value} autocomplete="off" spellcheck=${false}
        list=${`${id}-list`} onInput=${(/** @type {any} */ event) => (given.value = event.target.value)} />
      <datalist id=${`${id}-list`}>${suggestions.map((one) => html`<option value=${one} />`)}</datalist>
    </div>
  `;
}

/** @param {{name: string, label: string, options: [string, string][]}} properties */
export function ChoiceFilter({ name, label, options }) {
  const id = `filter-${name}`;
  const given = parameter(name);
  return html`
    <div class="filter">
      <label for=${id}>${label}</label>
      <select id=${id} value=${given.value} onChange=${(/** @type {any} */ event) => given.push(event.target.value)}>
        ${options.map(([value, text]) => html`<option value=${value}>${text}</option>`)}
      </select>
    </div>
  `;
}

/**
 * A form of filters, and a link that clears them.
 * @param {{label: string, names: string[], children?: import("./html.js").Children}} properties
 */
export function Filters({ label, names, children }) {
  return html`
    <form class="filters" role="search" aria-label=${label}
      onSubmit=${(/** @type {Event} */ event) => event.preventDefault()}>
      ${children}
      ${names.some((name) => query.value.get(name)) && html`<${Link} to=${path.value} class="chip">Clear<//>`}
    </form>
  `;
}

/**
 * The header of a list whose columns sort it: `?sort=reward`, or `?sort=-reward` for the highest first.
 * @param {[string, string][]} columns the name of each, and its title
 * @param {string} fallback
 */
export function sortHeaders(columns, fallback) {
  const given = parameter("sort", fallback);
  return columns.map(([name, title]) => {
    const order = { [name]: "ascending", [`-${name}`]: "descending" }[given.value];
    const mark = order ? html`<span aria-hidden="true">${order === "ascending" ? "▲" : "▼"}</span>` : null;
    const next = order === "ascending" ? `-${name}` : name;
    return html`
      <div role="columnheader" class=${name} aria-sort=${order ?? "none"}>
        <button type="button" class="quiet" onClick=${() => given.push(next)}>${title}${mark}</button>
      </div>
    `;
  });
}

/** A conversation: what was said, and tool calls that fold. Its items are those of the Responses API. */
import { html } from "./html.js";
import { parse } from "./json.js";
import { shorten, visible } from "./text.js";
import { textOf, Value } from "./value.js";

/** @typedef {{type?: string, [name: string]: any}} Item */

/**
 * The text of an item's content, which is a text, or parts with a text each.
 * @param {any} content
 * @returns {string}
 */
export function said(content) {
  if (!Array.isArray(content)) return content == null ? "" : textOf(content);
  return content.map((part) => part?.text ?? part?.refusal ?? textOf(part)).join("\n");
}

/**
 * Each call with its output; an output whose call is not among the items stands alone.
 * @param {Item[]} items
 * @returns {{item: Item, output?: Item}[]}
 */
export function paired(items) {
  const calls = new Map();
  const result = /** @type {{item: Item, output?: Item}[]} */ ([]);
  for (const item of items.filter((one) => one && typeof one === "object")) {
    const call = item.type === "function_call_output" ? calls.get(item.call_id) : undefined;
    if (call && !call.output) call.output = item;
    else result.push({ item });
    if (item.type === "function_call") calls.set(item.call_id, result.at(-1));
  }
  return result;
}

/** @param {{items: Item[]}} properties */
export function Chat({ items }) {
  return html`<div class="chat">${paired(items).map((one) => html`<${Turn} ...${one} />`)}</div>`;
}

/** @param {{item: Item, output?: Item}} properties */
function Turn({ item, output }) {
  if (item.type === "function_call") {
    const given = [
      ["Arguments", item.arguments],
      ["Output", output?.output],
    ];
    return html`<${Folded} name=${item.name} brief=${said(item.arguments)} parts=${given} />`;
  }
  if (item.type === "function_call_output") return html`<${Folded} name="Output" parts=${[["Output", item.output]]} />`;
  if (item.type === "reasoning") {
    return html`<${Folded} name="Reasoning" parts=${[["", said(item.content?.length ? item.content : item.summary)]]} />`;
  }
  if (item.role === undefined) return html`<${Folded} name=${item.type ?? "Item"} parts=${[["", item]]} />`;
  return html`
    <div class=${`turn ${item.role === "user" ? "user" : ""}`}>
      <h3>${visible(item.role)}</h3>
      <${Value} value=${said(item.content)} />
    </div>
  `;
}

/** @param {{name: string, brief?: string, parts: [string, any][]}} properties */
function Folded({ name, brief = "", parts }) {
  return html`
    <details class="turn">
      <summary><code>${visible(name)}</code> <span class="muted">${visible(shorten(brief, 120))}</span></summary>
      ${parts.map(
        ([title, value]) => html`
          ${title && html`<h3>${title}</h3>`}
          ${value === undefined ? html`<p class="muted">None yet.</p>` : html`<${Value} value=${pretty(value)} />`}
        `,
      )}
    </details>
  `;
}

/**
 * JSON in a text, laid out; any other text as it is.
 * @param {unknown} value
 */
function pretty(value) {
  if (typeof value !== "string" || !/^[[{]/.test(value)) return Array.isArray(value) ? said(value) : value;
  try {
    return parse(value);
  } catch {
    return value;
  }
}

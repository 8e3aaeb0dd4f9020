/** Copies text, and says whether that worked. */
import { html, signal } from "./html.js";

const SHOWN = 4000; // milliseconds

const said = signal("");
/** @type {ReturnType<typeof setTimeout> | undefined} */
let timer;

/**
 * Copy a text to the clipboard, which a browser allows to pages of this machine and over https only.
 * @param {string} text
 * @param {string} what for the message, such as "The path"
 */
export async function copy(text, what) {
  try {
    await navigator.clipboard.writeText(text);
    said.value = `${what} is copied.`;
  } catch {
    said.value = "The browser does not allow this page to copy.";
  }
  clearTimeout(timer);
  timer = setTimeout(() => (said.value = ""), SHOWN);
}

/** What became of the last copy, for a short time. */
export function Copied() {
  return html`<span class="muted" role="status">${said.value}</span>`;
}

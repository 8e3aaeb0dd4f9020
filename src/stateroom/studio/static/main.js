/** The page: its header, the screen that the URL names, and the dialogs that any screen may need. */
import { give, person, takeToken, wanted } from "./api.js";
import { Dialog } from "./dialog.js";
import { html, render, useEffect, useSignal } from "./html.js";
import { Help, helping, listen, useKeys } from "./keys.js";
import { Boundary, Problem } from "./load.js";
import { Link, match, navigate, path } from "./route.js";
import { screens } from "./screens.js";
import { connection } from "./stream.js";
import { visible } from "./text.js";

const SECTIONS = [
  ["/sessions", "Sessions", "s"],
  ["/play", "Play", "p"],
  ["/inbox", "Inbox", "i"],
  ["/runs", "Runs", "r"],
  ["/threads", "Threads", "t"],
  ["/store", "Store", "o"],
];

function Header() {
  const state = connection.value;
  const told = /** @type {Record<string, string>} */ ({
    idle: "",
    connecting: "Connecting",
    live: "Live",
    lost: "Reconnecting",
  })[state];
  const here = (/** @type {string} */ to) =>
    path.value === to || path.value.startsWith(`${to}/`) ? "page" : undefined;
  return html`
    <header class="top">
      <${Link} to="/sessions" class="brand">Stateroom<//>
      <nav aria-label="Sections">
        ${SECTIONS.map(([to, name]) => html`<${Link} to=${to} aria-current=${here(to)}>${name}<//>`)}
      </nav>
      <span class=${`connection ${state}`} role="status">${told}</span>
      <button type="button" class="quiet" onClick=${() => (wanted.value = "name")}>
        ${person.value ? visible(person.value) : "Your name"}
      </button>
      <button type="button" class="quiet" aria-label="Keys" title="Keys (?)"
        onClick=${() => (helping.value = true)}>?</button>
    </header>
  `;
}

const QUESTIONS = {
  name: {
    title: "Your name",
    label: "Name",
    says: "The log records it with every change that you make here.",
    type: "text",
  },
  token: {
    title: "Token",
    label: "Token",
    says: "Enter the token that the server printed at startup. It is kept only in this tab.",
    type: "password",
  },
};

/** Asks for what a request waits for. */
function Question() {
  return wanted.value && html`<${Asked} key=${wanted.value} asked=${wanted.value} />`;
}

/** @param {{asked: "name" | "token"}} properties */
function Asked({ asked }) {
  const answer = useSignal(asked === "name" ? person.value : "");
  const { title, label, says, type } = QUESTIONS[asked];
  const send = (/** @type {Event} */ event) => {
    event.preventDefault();
    if (answer.value.trim()) give(answer.value.trim());
  };
  return html`
    <${Dialog} title=${title} onClose=${() => give(null)}>
      <form onSubmit=${send}>
        <p>${says}</p>
        <div class="field">
          <label for="answer">${label}</label>
          <input id="answer" type=${type} autocomplete="off" autofocus value=${answer.value}
            onInput=${(/** @type {any} */ event) => (answer.value = event.target.value)} />
        </div>
        <button type="submit" class="primary">Save</button>
      </form>
    <//>
  `;
}

/** @typedef {(parameters: Record<string, string>) => any} Screen */

/** The screen for a path, and the parts of the path; null if there is none. */
function found() {
  for (const [pattern, load] of Object.entries(screens)) {
    const parameters = match(pattern, path.value);
    if (parameters) return { pattern, load, parameters };
  }
  return null;
}

/** Shows the screen of the path, whose module is loaded when it is first needed. */
function View() {
  const shown = useSignal(/** @type {{pattern: string, screen: Screen} | null} */ (null));
  const error = useSignal(/** @type {Error | null} */ (null));
  const again = useSignal(0);
  const wants = found();
  useEffect(() => {
    error.value = null;
    wants?.load().then(
      (module) => {
        shown.value = { pattern: wants.pattern, screen: module.default };
      },
      (problem) => {
        error.value = problem;
      },
    );
  }, [wants?.pattern, again.value]);
  if (!wants) return html`<${Problem} error=${new Error(`There is no view at ${path.value}.`)} />`;
  if (error.value) return html`<${Problem} error=${error.value} retry=${() => again.value++} />`;
  if (shown.value?.pattern !== wants.pattern) return html`<p class="muted">Loading…</p>`;
  return html`<${Boundary} key=${path.value}><${shown.value.screen} ...${wants.parameters} /><//>`;
}

function App() {
  useKeys("Everywhere", {
    "?": ["List the keys", () => (helping.value = true)],
    ...Object.fromEntries(SECTIONS.map(([to, name, key]) => [`g ${key}`, [`Go to ${name}`, () => navigate(to)]])),
    "/": ["Find", () => /** @type {HTMLElement | null} */ (document.querySelector("main input"))?.focus()],
  });
  return html`
    <a class="skip" href="#main">Skip to the content</a>
    <${Header} />
    <main id="main" tabindex="-1"><${View} /></main>
    <${Help} />
    <${Question} />
  `;
}

/** Take a token out of the URL: of the page, or of one that is pasted into its tab later. */
function takeFragment() {
  const fragment = takeToken(location.hash, sessionStorage);
  if (fragment !== location.hash) history.replaceState(null, "", location.pathname + location.search + fragment);
}

takeFragment();
addEventListener("hashchange", takeFragment);
if (path.value === "/") navigate("/sessions", { replace: true });
listen();
render(html`<${App} />`, /** @type {Element} */ (document.getElementById("app")));

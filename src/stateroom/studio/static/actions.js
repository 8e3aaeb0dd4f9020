/** What a person can do with a session, at the revision that is shown. */
import { post } from "./api.js";
import { Dialog } from "./dialog.js";
import { EditDialog } from "./edit.js";
import { Form } from "./form.js";
import { html, useRef, useSignal } from "./html.js";
import { useKeys } from "./keys.js";
import { Problem, usePoll } from "./load.js";
import { navigate, path } from "./route.js";
import { useServed } from "./served.js";
import { pathOf, SessionLink } from "./session.js";
import { number, visible } from "./text.js";
import { Exact, textOf } from "./value.js";

/**
 * A question in a dialog: some words, and a form, unless there is nothing to `submit`.
 * @param {{title: string, says: string, submit: string, fields?: Record<string, any>,
 *   onSubmit: (data: any) => Promise<unknown>, onClose: () => void}} properties
 */
export function Ask({ title, says, submit, fields = {}, onSubmit, onClose }) {
  const schema = { type: "object", properties: fields };
  return html`
    <${Dialog} title=${title} onClose=${onClose}>
      <p>${visible(says)}</p>
      ${submit && html`<${Form} schema=${schema} submit=${submit} onSubmit=${onSubmit} />`}
    <//>
  `;
}

/**
 * Runs one thing at a time, and keeps what went wrong.
 * @returns {{busy: boolean, error: Error | null, run: (work: () => Promise<unknown>) => () => Promise<void>}}
 */
export function useWork() {
  const [busy, error] = [useSignal(false), useSignal(/** @type {Error | null} */ (null))];
  const run = (/** @type {() => Promise<unknown>} */ work) => async () => {
    if (busy.value) return;
    busy.value = true;
    error.value = null;
    await work().catch((/** @type {Error} */ problem) => {
      error.value = problem;
    });
    busy.value = false;
  };
  return { busy: busy.value, error: error.value, run };
}

/**
 * Whether a model continues a session here; asked again while it does.
 * @param {string} here
 * @param {number | undefined} revision
 */
export function useProgress(here, revision) {
  const { value, retry } = usePoll(`${here}/continue`, {}, (found) => found?.running, [revision]);
  const { running = false, error = null } = value.value ?? {};
  return { running, error, refresh: retry };
}

/**
 * The toolbar of a session.
 * @param {{base: string, session: any, at: number | null}} properties `session` as the API gives it; `at` is the
 *   revision that is shown, null for the newest
 */
export function SessionActions({ base, session, at }) {
  const served = useServed().value.value;
  const here = pathOf(base, session.id);
  const { running, error: failure, refresh } = useProgress(here, session.revision);
  const { busy, error, run } = useWork();
  const opened = useSignal("");
  const made = useRef(""); // a fork in which a later step failed
  const revision = at ?? session.revision;
  const isLive = revision === session.revision && session.status === "live" && !session.sealed;
  const fork = async () => (await post(`${here}/fork`, { at: revision })).sessions[0].id;
  const target = async () => {
    if (!isLive) made.current ||= await fork();
    return isLive ? session.id : made.current;
  };
  const go = (/** @type {string} */ id, below = "") => navigate(pathOf(base, id) + below);
  const open = (/** @type {string} */ name) => () => {
    opened.value = name;
  };
  const isPlaying = path.value.endsWith("/play");
  /** @type {[string, string, string, () => void, boolean?][]} */
  const actions = [
    ["F", "Fork", "Fork from here", run(async () => go(await fork()))],
    ["e", "Edit and fork", "Edit the state and fork", open("edit")],
    ["p", "Play", "Play from here", run(async () => go(await target(), "/play")), isPlaying],
    ["c", "Continue with a model", "Let a model continue", open("continue"), running],
    ["x", "Stop", "Stop the model", run(() => post(`${here}/stop`).finally(refresh)), !running],
    ["b", "Checkpoint", "Give this revision a name", open("checkpoint"), !isLive],
    ["v", "Verify", "Ask for the verdict", open("verify")],
  ];
  const shown = served?.mode === "full" ? actions.filter(([, , , , isAbsent]) => !isAbsent) : [];
  useKeys("Session", Object.fromEntries(shown.map(([key, , does, act]) => [key, [does, act]])));
  if (!shown.length) return null;
  const where = isLive ? "in this session" : `on a fork at revision ${number(revision)}`;
  const close = () => {
    opened.value = made.current = "";
  };
  const environment = served?.environments.find(({ name }) => name === session.environment);
  const models = served?.environments.filter(({ model }) => model).map(({ name }) => name) ?? [];
  const shared = { base, here, session, revision, where, environment, models, target, go, close, refresh };
  const Opened = DIALOGS[opened.value];
  return html`
    <div class="bar" role="toolbar" aria-label="Actions">
      ${shown.map(
        ([key, name, does, act]) => html`<button type="button" key=${name} title=${`${does} (${key})`}
          class=${name === "Stop" ? "danger" : ""} disabled=${busy} onClick=${act}>${name}</button>`,
      )}
      ${running && html`<span class="badge executing" role="status">A model continues this session</span>`}
    </div>
    ${failure && html`<${Problem} error=${new Error(`The model stopped: ${failure}`)} />`}
    ${error && html`<${Problem} error=${error} />`}
    ${Opened && html`<${Opened} ...${shared} />`}
  `;
}

/**
 * What a dialog of the toolbar gets.
 * @typedef {object} Shared
 * @property {string} base
 * @property {string} here
 * @property {any} session
 * @property {number} revision
 * @property {string} where the words for the session that is acted in
 * @property {import("./served.js").Environment} [environment]
 * @property {string[]} models the environments in which a model acts
 * @property {() => Promise<string>} target the id of that session, which may be a new fork
 * @property {(id: string) => void} go
 * @property {() => void} close
 * @property {() => void} refresh
 */

/** @type {Record<string, (shared: Shared) => any>} */
const DIALOGS = {
  edit: ({ here, revision, environment, go, close }) => html`<${EditDialog} here=${here} at=${revision}
    schema=${environment?.state_schema} onFork=${go} onClose=${close} />`,
  continue: Continue,
  checkpoint: ({ here, revision, close }) => html`<${Ask} title="Checkpoint" submit="Save" onClose=${close}
    says=${`A name for revision ${number(revision)}.`} fields=${{ name: { type: "string" } }}
    onSubmit=${(/** @type {any} */ data) => post(`${here}/checkpoint`, data).then(close)} />`,
  verify: Verify,
};

/** @param {Shared} shared */
function Continue({ base, session, revision, where, environment, models, target, go, close, refresh }) {
  const start = async (/** @type {{message?: string}} */ { message }) => {
    const isNewest = revision === session.revision;
    if (!message && isNewest && ["done", "cancelled"].includes(session.phase)) {
      throw new Error("The agent has ended its work. Write what the user says next.");
    }
    const id = await target();
    await post(`${pathOf(base, id)}/continue`, { message });
    close();
    if (id === session.id) refresh();
    else go(id);
  };
  const advice = !environment
    ? `Start Studio with ${session.environment}.`
    : models.length
      ? `The server's model acts in ${models.join(", ")} only.`
      : "Start the server with --model.";
  return html`<${Ask} title="Continue with a model" submit=${environment?.model ? "Continue" : ""} onSubmit=${start}
    says=${environment?.model ? `The model continues ${where}.` : `No model acts in ${session.environment} here. ${advice}`} onClose=${close}
    fields=${{ message: { type: "string", description: "The user's first message." } }} />`;
}

/**
 * The reason of a verdict, and its parts.
 * @param {{verdict: any}} properties
 */
export function Verdict({ verdict }) {
  const parts = ["components", "metrics", "details"].flatMap((group) => Object.entries(verdict[group] ?? {}));
  return html`
    ${verdict.reason && html`<p>${visible(verdict.reason)}</p>`}
    <table>
      <tbody>
        ${parts.map(
          ([name, value]) =>
            html`<tr><th scope="row">${visible(name)}</th><td class="data">${visible(textOf(value))}</td></tr>`,
        )}
      </tbody>
    </table>
  `;
}

/** @param {Shared} shared */
function Verify({ base, session, revision, where, target, close }) {
  const isKnown = revision === session.revision && session.verdict;
  const found = useSignal(isKnown ? { id: session.id, verdict: session.verdict } : null);
  const verify = async () => {
    const id = await target();
    found.value = { id, verdict: (await post(`${pathOf(base, id)}/verify`)).verdict };
  };
  if (!found.value) {
    return html`<${Ask} title="Verify" submit="Verify" onSubmit=${verify} onClose=${close}
      says=${`The verdict is given ${where}. No tool can be called there after it.`} />`;
  }
  const { id, verdict } = found.value;
  return html`
    <${Dialog} title=${html`Reward <${Exact} value=${verdict.reward} />`} onClose=${close}>
      <${Verdict} verdict=${verdict} />
      ${id !== session.id && html`<p>Given in the fork <${SessionLink} base=${base} id=${id} /></p>`}
    <//>
  `;
}

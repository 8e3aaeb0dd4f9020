/** Preact, signals and htm: what a component needs, from one place. */
import htm from "./vendor/htm.js";
import { h } from "./vendor/preact.js";

/** A tagged template that makes virtual nodes: html`<p class=${name}>${text}</p>`. */
export const html = htm.bind(h);

export { useEffect, useId, useLayoutEffect, useMemo, useRef } from "./vendor/hooks.js";
export { Component, render } from "./vendor/preact.js";
export { batch, computed, signal, useSignal } from "./vendor/signals.js";

/** @typedef {import("preact").ComponentChildren} Children What a component may have inside. */
/**
 * @template T
 * @typedef {import("@preact/signals").Signal<T>} Signal A value that components follow.
 */

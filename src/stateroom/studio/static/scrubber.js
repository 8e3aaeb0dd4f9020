/** A slider over all revisions of a session, with ticks by kind on one canvas. */
import { html, useLayoutEffect, useRef, useSignal } from "./html.js";
import { lookOf } from "./log.js";
import { number } from "./text.js";

const COLOURS = /** @type {Record<string, string>} */ ({
  calm: "--edge",
  accent: "--accent",
  good: "--good",
  bad: "--bad",
  warn: "--warn",
  point: "--series-2",
  person: "--series-4",
});

const WIDEST = 6; // pixels of a tick

/** How many revisions a key moves. @type {Record<string, (at: number, newest: number) => number>} */
const MOVES = {
  ArrowRight: (at) => at + 1,
  ArrowUp: (at) => at + 1,
  ArrowLeft: (at) => at - 1,
  ArrowDown: (at) => at - 1,
  PageUp: (at, newest) => at + Math.max(10, Math.round(newest / 20)),
  PageDown: (at, newest) => at - Math.max(10, Math.round(newest / 20)),
  Home: () => 1,
  End: (_at, newest) => newest,
};

/**
 * The revision at a part of the whole, from 0 to 1.
 * @param {number} part
 * @param {number} newest
 */
export const revisionAt = (part, newest) => Math.max(1, Math.min(newest, Math.floor(part * newest) + 1));

/**
 * Draw the ticks: calm ones low, and over them those that one looks for.
 * @param {HTMLCanvasElement} canvas
 * @param {import("./log.js").Run[]} runs
 * @param {number} newest
 */
function draw(canvas, runs, newest) {
  const { clientWidth: width, clientHeight: height } = canvas;
  const [scale, style, pen] = [devicePixelRatio, getComputedStyle(canvas), canvas.getContext("2d")];
  canvas.width = width * scale;
  canvas.height = height * scale;
  if (!pen) return;
  pen.scale(scale, scale);
  const step = width / newest;
  for (const isLoud of [false, true]) {
    for (const [kind, first, last] of runs) {
      const { tone } = lookOf(kind);
      if (kind === "pruned" || !/calm|accent/.test(tone) !== isLoud) continue;
      pen.fillStyle = style.getPropertyValue(COLOURS[tone]);
      const tall = height * (isLoud ? 1 : tone === "accent" ? 0.55 : 0.25);
      const isApart = step > 3; // else neighbours touch, and are drawn as one
      pen.globalAlpha = isLoud || isApart ? 1 : 0.4;
      const wide = isApart ? Math.min(step - 1, WIDEST) : Math.max((last - first + 1) * step, isLoud ? 2 : 1);
      for (let at = first; at <= (isApart ? last : first); at++) {
        pen.fillRect((at - 1) * step + (isApart ? (step - wide) / 2 : 0), height - tall, wide, tall);
      }
    }
  }
}

/**
 * @param {{log: import("./session.js").Log, value: number, onChange: (revision: number) => void}} properties
 */
export function Scrubber({ log, value, onChange }) {
  const canvas = useRef(/** @type {HTMLCanvasElement | null} */ (null));
  const drawn = useSignal(0);
  const newest = log.newest.value;
  useLayoutEffect(() => {
    const again = () => void drawn.value++;
    const sizes = new ResizeObserver(again);
    const dark = matchMedia("(prefers-color-scheme: dark)");
    sizes.observe(/** @type {Element} */ (canvas.current));
    dark.addEventListener("change", again);
    return () => {
      sizes.disconnect();
      dark.removeEventListener("change", again);
    };
  }, []);
  useLayoutEffect(() => {
    if (canvas.current) draw(canvas.current, log.runs, newest);
  }, [log, newest, drawn.value]);
  const move = (/** @type {PointerEvent} */ event) => {
    const { left, width } = /** @type {Element} */ (event.currentTarget).getBoundingClientRect();
    if (event.buttons & 1) onChange(revisionAt((event.clientX - left) / width, newest));
  };
  const grab = (/** @type {PointerEvent} */ event) => {
    /** @type {Element} */ (event.currentTarget).setPointerCapture(event.pointerId);
    move(event);
  };
  const press = (/** @type {KeyboardEvent} */ event) => {
    const next = MOVES[event.key]?.(value, newest);
    if (next === undefined || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    onChange(Math.max(1, Math.min(newest, next)));
  };
  return html`
    <div class="scrubber" role="slider" tabindex="0" aria-label="Revision" aria-valuemin="1" aria-valuemax=${newest}
      aria-valuenow=${value} aria-valuetext=${`${number(value)} of ${number(newest)}`}
      onPointerDown=${grab} onPointerMove=${move} onKeyDown=${press}>
      <canvas ref=${canvas}></canvas>
      <span class="thumb" style=${{ left: `${((value - 0.5) / newest) * 100}%` }}></span>
    </div>
  `;
}

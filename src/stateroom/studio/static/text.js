/** Text for people: characters made visible, times, numbers, sizes, and the difference of two texts by words. */

// Controls (but tab and line feed), characters that reorder or hide text, and halves of surrogate pairs.
const HIDDEN = new RegExp(
  [
    "[\\u0000-\\u0008\\u000b-\\u001f\\u007f-\\u009f\\u00ad\\u061c\\u180e\\u200b\\u200e\\u200f\\u2028-\\u202e]",
    "[\\u2060-\\u206f\\ufeff\\ufff9-\\ufffb\\u{e0000}-\\u{e007f}]",
    "\\p{Cs}",
  ].join("|"),
  "gu",
);

/** @param {string} character */
function picture(character) {
  const code = /** @type {number} */ (character.codePointAt(0));
  if (code < 0x20) return String.fromCodePoint(0x2400 + code);
  return `⟨U+${code.toString(16).toUpperCase().padStart(4, "0")}⟩`;
}

/**
 * A text in which control, bidi and invisible characters are shown. All that models and tools wrote goes through here.
 * @param {unknown} text
 */
export function visible(text) {
  return String(text).replace(HIDDEN, picture);
}

/**
 * The first characters of a text, and `…` if there are more.
 * @param {string} text
 * @param {number} most
 */
export function shorten(text, most) {
  return text.length > most ? `${text.slice(0, most - 1)}…` : text;
}

const UNITS = /** @type {[number, string][]} */ ([
  [86400, "d"],
  [3600, "h"],
  [60, "min"],
  [1, "s"],
]);

/**
 * A time as people say it: `5 min ago`, `in 2 d`, `now`.
 * @param {number} at seconds since 1970
 * @param {number} [now] seconds since 1970
 */
export function ago(at, now = Date.now() / 1000) {
  const distance = Math.abs(now - at);
  const [size, unit] = UNITS.find(([seconds]) => distance >= seconds) ?? [1, ""];
  if (!unit) return "now";
  const amount = `${Math.floor(distance / size)} ${unit}`;
  return at > now ? `in ${amount}` : `${amount} ago`;
}

/**
 * A time as `2026-11-16 21:49:00`, in the zone of this computer.
 * @param {number} at seconds since 1970
 */
export function absolute(at) {
  const shifted = new Date(at * 1000 - new Date(at * 1000).getTimezoneOffset() * 60_000);
  return shifted.toISOString().slice(0, 19).replace("T", " ");
}

/**
 * A number with separators, and at most four digits after the point: `12,345`, `0.3333`.
 * @param {number} value
 */
export function number(value) {
  return value.toLocaleString("en-US", { maximumFractionDigits: 4 });
}

/**
 * An amount of things: `1 session`, `2 sessions`, `3 entries`.
 * @param {number} amount
 * @param {string} one
 * @param {string} [many]
 */
export function plural(amount, one, many = `${one}s`) {
  return `${number(amount)} ${amount === 1 ? one : many}`;
}

/**
 * A size in bytes: `512 B`, `1.5 kB`, `12 MB`.
 * @param {number} size
 */
export function bytes(size) {
  let unit = 0;
  let value = size;
  for (; value >= 1000 && unit < 4; unit++) value /= 1000;
  return `${unit && value < 10 ? value.toFixed(1) : Math.round(value)} ${["B", "kB", "MB", "GB", "TB"][unit]}`;
}

/** @typedef {{kind: "same" | "gone" | "new", text: string}} Part A piece of two texts that are compared. */

/** Words that are looked at between two texts; what differs more is shown as replaced. */
const MOST_EDITS = 500;

/**
 * What differs between two texts, by words: pieces that are the same, gone or new, in order.
 * @param {string} before
 * @param {string} after
 * @returns {Part[]}
 */
export function wordDifference(before, after) {
  const [old, now] = [words(before), words(after)];
  let start = 0;
  while (start < old.length && start < now.length && old[start] === now[start]) start++;
  let end = 0;
  while (end < old.length - start && end < now.length - start && old.at(-1 - end) === now.at(-1 - end)) end++;
  const middle = edits(old.slice(start, old.length - end), now.slice(start, now.length - end));
  const same = (/** @type {string[]} */ texts) => /** @type {Part} */ ({ kind: "same", text: texts.join("") });
  return joined([same(old.slice(0, start)), ...middle, same(old.slice(old.length - end))]);
}

/** @param {string} text */
function words(text) {
  return text.match(/[\p{L}\p{N}_]+|\s+|[^\p{L}\p{N}_\s]/gu) ?? [];
}

/**
 * Myers' shortest edit script.
 * @param {string[]} old
 * @param {string[]} now
 * @returns {Part[]}
 */
function edits(old, now) {
  const most = Math.min(old.length + now.length, MOST_EDITS);
  const furthest = new Map([[1, 0]]);
  const trace = [];
  for (let steps = 0; steps <= most; steps++) {
    trace.push(new Map(furthest));
    for (let line = -steps; line <= steps; line += 2) {
      let x = goesDown(furthest, line, steps) ? (furthest.get(line + 1) ?? 0) : (furthest.get(line - 1) ?? 0) + 1;
      while (x < old.length && x - line < now.length && old[x] === now[x - line]) x++;
      furthest.set(line, x);
      if (x >= old.length && x - line >= now.length) return walkBack(trace, old, now);
    }
  }
  return [
    { kind: "gone", text: old.join("") },
    { kind: "new", text: now.join("") },
  ];
}

/**
 * @param {Map<number, number>} furthest
 * @param {number} line
 * @param {number} steps
 */
function goesDown(furthest, line, steps) {
  return line === -steps || (line !== steps && (furthest.get(line - 1) ?? 0) < (furthest.get(line + 1) ?? 0));
}

/**
 * @param {Map<number, number>[]} trace
 * @param {string[]} old
 * @param {string[]} now
 * @returns {Part[]}
 */
function walkBack(trace, old, now) {
  /** @type {Part[]} */
  const parts = [];
  let [x, y] = [old.length, now.length];
  for (let steps = trace.length - 1; steps >= 0; steps--) {
    const line = x - y;
    const from = goesDown(trace[steps], line, steps) ? line + 1 : line - 1;
    const fromX = steps ? (trace[steps].get(from) ?? 0) : 0;
    const fromY = steps ? fromX - from : 0;
    for (; x > fromX && y > fromY; x--, y--) parts.push({ kind: "same", text: old[x - 1] });
    if (x > fromX) parts.push({ kind: "gone", text: old[--x] });
    else if (y > fromY) parts.push({ kind: "new", text: now[--y] });
  }
  return parts.reverse();
}

/**
 * Neighbours of one kind become one piece.
 * @param {Part[]} parts
 */
function joined(parts) {
  /** @type {Part[]} */
  const result = [];
  for (const part of parts.filter(({ text }) => text)) {
    const last = result.at(-1);
    if (last?.kind === part.kind) last.text += part.text;
    else result.push({ ...part });
  }
  return result;
}

/** Where the rows of a long list are: which are in sight, and how far to scroll to one. */

/** The highest element that every browser lays out, with a margin: Firefox ends at 17 million pixels. */
const HIGHEST = 10_000_000;
const MORE = 8; // rows above and below those in sight

/**
 * Which rows are in sight, and where they are.
 * @param {{size: number, rowHeight: number, viewHeight: number, scrollTop: number}} given
 * @returns {{first: number, last: number, top: number, height: number}} rows, the pixel of the first, and of the whole
 */
export function layout({ size, rowHeight, viewHeight, scrollTop }) {
  const whole = size * rowHeight;
  const height = Math.min(whole, HIGHEST);
  const start = startOf(scrollTop, whole, height, viewHeight);
  const first = Math.max(0, Math.floor(start / rowHeight) - MORE);
  const last = Math.min(size - 1, Math.ceil((start + viewHeight) / rowHeight) + MORE);
  return { first, last, top: scrollTop + first * rowHeight - start, height };
}

/**
 * The pixel of the whole list that is at the top of the view. A list that is too high for a browser is scrolled faster.
 * @param {number} scrollTop
 * @param {number} whole
 * @param {number} height
 * @param {number} viewHeight
 */
function startOf(scrollTop, whole, height, viewHeight) {
  if (whole <= height) return scrollTop;
  return Math.min(scrollTop / (height - viewHeight), 1) * (whole - viewHeight);
}

/**
 * Where to scroll so that a row is in sight; where the list is now, if it is.
 * @param {{size: number, rowHeight: number, viewHeight: number, scrollTop: number}} given
 * @param {number} index
 */
export function scrollTo({ size, rowHeight, viewHeight, scrollTop }, index) {
  const whole = size * rowHeight;
  const height = Math.min(whole, HIGHEST);
  const start = startOf(scrollTop, whole, height, viewHeight);
  const top = index * rowHeight;
  const wanted = top < start ? top : top + rowHeight > start + viewHeight ? top + rowHeight - viewHeight : start;
  if (wanted === start) return scrollTop;
  return whole <= height ? wanted : (wanted / (whole - viewHeight)) * (height - viewHeight);
}

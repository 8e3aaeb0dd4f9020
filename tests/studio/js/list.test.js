import assert from "node:assert/strict";
import { test } from "node:test";
import { layout, scrollTo } from "../../../src/stateroom/studio/static/layout.js";
import { CursorSource, RangeSource } from "../../../src/stateroom/studio/static/source.js";

const view = { rowHeight: 32, viewHeight: 640 };

test("only the rows in sight are laid out", () => {
  for (const size of [0, 1, 100, 100_000, 5_000_000]) {
    const { height } = layout({ ...view, size, scrollTop: 0 });
    assert(height <= 10_000_000);
    for (const part of [0, 0.25, 0.5, 1]) {
      const scrollTop = Math.max(0, height - view.viewHeight) * part;
      const { first, last, top } = layout({ ...view, size, scrollTop });
      assert(last - first < 200);
      assert(size === 0 || (first >= 0 && last < size));
      assert(
        top <= scrollTop && (size === 0 || top + (last - first + 1) * 32 >= Math.min(height, scrollTop + 640) - 1),
      );
    }
    assert.equal(layout({ ...view, size, scrollTop: Math.max(0, height - 640) }).last, size - 1);
  }
});

test("any row can be brought into sight, also in a list that is too high for a browser", () => {
  for (const size of [100_000, 5_000_000]) {
    for (const index of [0, 1, 777, Math.floor(size / 2), size - 2, size - 1]) {
      const scrollTop = scrollTo({ ...view, size, scrollTop: 12_345 }, index);
      const { first, last } = layout({ ...view, size, scrollTop });
      assert(first <= index && index <= last, `${index} of ${size}`);
      assert.equal(scrollTo({ ...view, size, scrollTop }, index), scrollTop);
    }
  }
});

/** @param {number} size */
function pages(size) {
  const asked = /** @type {(string | null)[]} */ ([]);
  const load = async (/** @type {string | null} */ cursor) => {
    asked.push(cursor);
    const at = Number(cursor);
    const rows = Array.from({ length: Math.min(10, size - at) }, (_, index) => ({ id: at + index }));
    return { rows, next: at + 10 < size ? String(at + 10) : null };
  };
  return { source: new CursorSource(load, ({ id }) => id), asked };
}

test("pages behind a cursor come once each, as far as they are needed", async () => {
  const { source, asked } = pages(35);
  await Promise.all([source.need(0, 12), source.need(0, 5), source.need(0, 15)]);
  assert.deepEqual(asked, [null, "10"]);
  assert.deepEqual([source.size.value, source.complete.value, source.at(19)], [20, false, { id: 19 }]);
  await source.need(0, Number.POSITIVE_INFINITY);
  assert.deepEqual([source.size.value, source.complete.value, asked.length], [35, true, 4]);
});

test("new rows come at the top, and none is there twice", async () => {
  const { source } = pages(15);
  await source.need(0, 0);
  source.insert([{ id: 99 }, { id: 3 }, { id: 12 }]);
  assert.deepEqual(
    [source.at(0), source.at(1), source.size.value, source.inserted.value],
    [{ id: 99 }, { id: 12 }, 12, 2],
  );
  await source.need(0, 100);
  assert.equal(source.size.value, 16);
});

test("a page that fails is tried again on demand only", async () => {
  let fails = true;
  const source = new CursorSource(
    async () => {
      if (fails) throw new Error("no");
      return { rows: [1], next: null };
    },
    (row) => row,
  );
  await source.need(0, 0);
  assert.equal(source.error.value?.message, "no");
  fails = false;
  await source.retry();
  assert.deepEqual([source.error.value, source.at(0)], [null, 1]);
});

test("rows with numbers are read from any place, and old pages forgotten", async () => {
  const asked = /** @type {number[]} */ ([]);
  const load = async (/** @type {number} */ first, /** @type {number} */ limit) => {
    asked.push(first);
    return Array.from({ length: Math.min(limit, 1005 - first) }, (_, index) => first + index);
  };
  const source = new RangeSource(load, 1005, 100, 3);
  await Promise.all([source.need(950, 1010), source.need(990, 1004)]);
  assert.deepEqual([asked, source.at(1004), source.at(0)], [[900, 1000], 1004, undefined]);
  source.append([1005]);
  assert.deepEqual([source.at(1005), source.size.value], [1005, 1006]);
  for (const first of [0, 300, 500]) await source.need(first, first);
  assert.deepEqual([source.at(0), source.at(1004)], [0, undefined]);
});

test("one page is loaded at a time, and only those that are needed in the end", async () => {
  const asked = /** @type {number[]} */ ([]);
  let [flying, most] = [0, 0];
  const load = async (/** @type {number} */ first) => {
    asked.push(first);
    most = Math.max(most, ++flying);
    await new Promise((done) => setTimeout(done, 0));
    flying--;
    return Array.from({ length: 100 }, (_, index) => first + index);
  };
  const source = new RangeSource(load, 10_000, 100, 3);
  for (let first = 0; first < 9000; first += 500) source.need(first, first);
  await source.need(9150, 9250);
  assert.deepEqual([asked, most, source.at(9150)], [[0, 9100, 9200], 1, 9150]);
});

test("rows that are added while their page is loaded are neither lost nor there twice", async () => {
  const rows = [0, 1, 2];
  let go = () => {};
  const load = async () => {
    const found = [...rows];
    await new Promise((done) => {
      go = () => done(null);
    });
    return found;
  };
  const source = new RangeSource(load, 3, 10);
  const loaded = source.need(0, 9);
  rows.push(3);
  source.append([3]);
  go();
  await new Promise((done) => setTimeout(done, 0));
  rows.push(4);
  go();
  await loaded;
  source.append([4]);
  source.append([5]);
  assert.deepEqual(
    [0, 1, 2, 3, 4, 5, 6].map((index) => source.at(index)),
    [0, 1, 2, 3, 4, 5, undefined],
  );
});

test("a list that has become shorter is read once", async () => {
  let asked = 0;
  const load = async () => {
    asked++;
    return [1, 2];
  };
  const source = new RangeSource(load, 5, 10);
  await source.need(0, 4);
  assert.deepEqual([asked, source.size.value], [1, 2]);
});

test("a row that is known is replaced where it is", async () => {
  const rows = [{ id: 1 }, { id: 2 }];
  const source = new CursorSource(
    async () => ({ rows, next: null }),
    (/** @type {any} */ row) => row.id,
  );
  await source.need(0, 1);
  const changed = { id: 2 };
  source.insert([changed]);
  assert.equal(source.at(1), changed);
  assert.deepEqual([source.size.value, source.inserted.value], [2, 0]);
});

test("rows that are needed just when the last page has come are loaded too", async () => {
  const load = async (/** @type {number} */ first, /** @type {number} */ limit) =>
    Array.from({ length: limit }, (_, offset) => first + offset);
  const source = new RangeSource(load, 1000, 100);
  let changes = 0;
  source.version.subscribe(() => {
    if (changes++ === 1) queueMicrotask(() => source.need(500, 501)); // as a list does when it is drawn again
  });
  await source.need(0, 1);
  await new Promise((done) => setTimeout(done, 0));
  assert.deepEqual([source.at(0), source.at(500)], [0, 500]);
});

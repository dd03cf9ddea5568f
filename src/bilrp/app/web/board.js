// @ts-check
// Region selection: one item, large, whose regions or words are selected by dragging, by clicks or by the keyboard.
// Dragging selects regions (`part`); with Shift it excludes them (`without`). Enter and Shift+Enter do the same, Escape clears.

import { node, pool, set } from "../page/dom.js";
import { neighbour, shapeOf, union, within } from "../page/geometry.js";
import { isMark } from "../page/text.js";
import { capital, nameOf } from "../page/words.js";
import { strengths } from "./heat.js";

const ARROWS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
const THIN = { fill: "none", "vector-effect": "non-scaling-stroke", "pointer-events": "none" };
const ALPHA = 0.72;

const measure = (text) => {
  const pen = document.createElement("canvas").getContext("2d");
  pen.font = "17px sans-serif";
  return pen.measureText(text).width;
};

/** The region under the pointer, or the nearest one. */
function regionUnder(board, event) {
  const at = event.target.closest?.(".region");
  if (at) return Number(at.dataset.i);
  const [x, y] = pointOf(board, event);
  let best = -1;
  let least = Infinity;
  board.shape.centres.forEach(([cx, cy], i) => {
    const far = (cx - x) ** 2 + (cy - y) ** 2;
    if (far < least) [best, least] = [i, far];
  });
  return best;
}

/** The pointer's position in units of the SVG, also where the image does not fill its element. */
function pointOf({ svg }, event) {
  const { x, y } = new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse());
  return [x, y];
}

function regionsOf(side, shape, about) {
  return shape.paths.map((d, i) =>
    node("svg:path", {
      d,
      class: "region",
      role: "option",
      "aria-selected": "false",
      "aria-label": capital(nameOf({ a: side, b: side }, "a", [i]).replace(" of A", about)),
      tabindex: i ? -1 : 0,
      "data-i": i,
      "fill-rule": "evenodd",
      "fill-opacity": 0,
    }),
  );
}

function letters(side, shape) {
  if (!shape.words) return null;
  const labels = [...shape.boxes.map((box, i) => ({ text: shape.labels[i] ?? "", box, mark: isMark(side, i) })), ...shape.loose];
  const all = labels.map(({ text, box, mark }) =>
    node("svg:text", { x: (box[1] + box[3]) / 2, y: (box[0] + box[2]) / 2, class: mark ? "letters mark" : "letters" }, text),
  );
  return node("svg:g", { "aria-hidden": "true", "pointer-events": "none" }, ...all);
}

/**
 * Show an item in `root` for the selection of regions.
 * @param {HTMLElement} root
 * @param {any} side the item's regions and view, as in the payload of a page
 * @param {object} options
 * @param {string} [options.src] URL of the image
 * @param {string} options.label accessible name of the list of regions
 * @param {(state: { part: number[], without: number[] }, done: boolean) => void} options.changed called after every
 *   change; `done` is false during a drag
 * @param {"part" | "without" | null} [options.only] the list that every selection changes, also with Shift
 */
export function createBoard(root, side, { src, label, changed, only = null }) {
  const shape = shapeOf(side, Math.max(root.clientWidth, 240), measure);
  const paths = regionsOf(side, shape, "");
  const list = node("svg:g", { role: "listbox", "aria-multiselectable": "true", "aria-label": label }, ...paths);
  const outline = { part: node("svg:g", { class: "chosen" }), without: node("svg:g", { class: "left-out" }) };
  const seen = side.view;
  const image =
    side.places &&
    node("svg:image", {
      href: src,
      x: 0,
      y: 0,
      width: seen?.width ?? shape.width,
      height: seen?.height ?? shape.height,
      preserveAspectRatio: "none",
    });
  const about = { class: shape.words ? "board wordy" : "board", viewBox: [shape.x, shape.y, shape.width, shape.height].join(" ") };
  const svg = node("svg:svg", about, image, list, letters(side, shape), outline.without, outline.part);
  if (shape.words) Object.assign(svg.style, { width: `${shape.width}px` });
  const board = { svg, shape, paths, outline, changed, only, state: { part: [], without: [] }, anchor: null, drag: null };
  root.replaceChildren(svg);
  listen(board);
  return {
    set: (state) => show(board, state),
    get state() {
      return board.state;
    },
    colour: (values) => colour(board, values),
    focus: () => paths.find((path) => path.getAttribute("tabindex") === "0")?.focus({ preventScroll: true }),
  };
}

function colour({ paths, svg }, values) {
  svg.classList.toggle("lit", Boolean(values));
  const shown = values ? strengths(values) : [];
  paths.forEach((path, i) => {
    const s = shown[i] ?? 0;
    path.classList.toggle("for", s > 0);
    path.classList.toggle("against", s < 0);
    set(path, { "fill-opacity": (ALPHA * Math.abs(s)).toFixed(3) });
  });
}

function show(board, state) {
  board.state = state;
  for (const name of ["part", "without"]) {
    const d = state[name].length ? union(board.shape, new Set(state[name])) : "";
    pool(board.outline[name], 2, "svg:path").forEach((line) => set(line, { d, ...THIN, "fill-rule": "evenodd" }));
  }
  const chosen = new Set([...state.part, ...state.without]);
  board.paths.forEach((path, i) => set(path, { "aria-selected": chosen.has(i) }));
}

/** Show a selection and report it. */
function become(board, state, done) {
  show(board, state);
  board.changed(state, done);
}

/** The state with these regions in one of the two lists and nothing in the other. */
const stateOf = (only, shift, regions) => ({
  part: [],
  without: [],
  [only ?? (shift ? "without" : "part")]: regions.sort((x, y) => x - y),
});

/** The state after a region was added to its list, or removed from it. */
function toggled({ state, only }, i, shift) {
  const had = new Set(state[only ?? (shift ? "without" : "part")]);
  if (!had.delete(i)) had.add(i);
  return stateOf(only, shift, [...had]);
}

function listen(board) {
  const { svg } = board;
  svg.addEventListener("pointerdown", (event) => {
    if (event.button) return;
    event.preventDefault();
    svg.setPointerCapture(event.pointerId);
    const start = regionUnder(board, event);
    board.drag = {
      start,
      from: pointOf(board, event),
      shift: event.shiftKey,
      add: event.ctrlKey || event.metaKey,
      moved: false,
      before: board.state,
    };
    rove(board, start);
  });
  svg.addEventListener("pointermove", (event) => {
    const { drag } = board;
    if (!drag) return;
    const now = regionUnder(board, event);
    if (!drag.moved && now === drag.start) return;
    drag.moved = true;
    become(board, brushed(board, drag, now), false);
  });
  svg.addEventListener("pointerup", (event) => {
    const { drag } = board;
    board.drag = null;
    if (!drag) return;
    const now = regionUnder(board, event);
    become(board, drag.moved ? brushed(board, drag, now) : toggled(board, drag.start, drag.shift), true);
  });
  svg.addEventListener("pointercancel", () => {
    if (board.drag) become(board, board.drag.before, true);
    board.drag = null;
  });
  svg.addEventListener("keydown", (event) => key(board, event) && event.preventDefault());
}

/**
 * The state of a drag: regions inside its rectangle, or all words from its start to its end.
 * @param {any} board
 * @param {{ start: number, before: any, shift?: boolean, add?: boolean }} drag
 * @param {number} now the region under the pointer
 */
function brushed({ shape, only }, { start, shift, add, before }, now) {
  /** @type {(ends: number[]) => number[]} */
  const span = ([from, to]) => Array.from({ length: to - from + 1 }, (_, k) => from + k);
  const order = [Math.min(start, now), Math.max(start, now)];
  const chosen = shape.words ? span(order) : within(shape.centres, shape.centres[start], shape.centres[now]);
  const had = add ? before[only ?? (shift ? "without" : "part")] : [];
  return stateOf(only, shift, [...new Set([...had, ...chosen])]);
}

/** Make region i the one that Tab reaches. */
function rove({ paths }, i) {
  for (const path of paths) if (path.getAttribute("tabindex") === "0") set(path, { tabindex: -1 });
  set(paths[i], { tabindex: 0 });
}

/** Handle a key; return whether it was handled. */
function key(board, event) {
  const at = event.target.closest?.(".region");
  if (!at || event.ctrlKey || event.metaKey || event.altKey) return false;
  const i = Number(at.dataset.i);
  const go = (to) => {
    rove(board, to);
    board.paths[to].focus();
  };
  if (event.key in ARROWS) {
    const to = neighbour(board.shape.centres, i, ARROWS[event.key]);
    if (!event.shiftKey) board.anchor = null;
    else board.anchor ??= i;
    go(to);
    if (event.shiftKey) become(board, brushed(board, { start: board.anchor, before: board.state }, to), true);
  } else if (event.key === "Home") go(0);
  else if (event.key === "End") go(board.paths.length - 1);
  else if (event.key === "Enter" || event.key === " ") become(board, toggled(board, i, event.shiftKey), true);
  else if (event.key === "Escape") become(board, { part: [], without: [] }, true);
  else return false;
  return true;
}

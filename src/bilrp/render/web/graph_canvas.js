// @ts-check
// The network on a canvas: pan, zoom, and choose nodes and edges by pointer or keyboard.

import { paintNetwork, tracePath } from "./graph_paint.js";
import { arrangeByTime, rankTimes } from "./graph_times.js";

const HIT_PIXELS = 8;
const MARGIN_PIXELS = 28;
const MAX_FIT_SCALE = 12;
const MAX_REVEAL_SCALE = 6; // of what was chosen in the list: its neighbours stay in view
const MAX_STRETCH = 2; // of columns by time, which are farther apart than rows

/**
 * @param {HTMLCanvasElement} canvas
 * @param {import("./graph.js").GraphData} data
 * @param {(next: import("./graph.js").Selection) => void} choose
 */
export function drawNetwork(canvas, data, choose) {
  const context = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
  const network = { places: data.nodes.map(({ x, y }) => [x, y]), lines: listLines(data, null) };
  const chronology = data.time ? makeChronology(data) : network;
  const fixed = { names: data.nodes.map(({ name }) => name), ages: rankTimes(data), hasSources: data.sources.length > 0 };
  let shown = network;
  let view = { scale: 1, wide: 1, x: 0, y: 0 };
  let marked = markSelection(data, { kind: "none" });

  /** @param {number} n a node @returns {number[]} its pixels on the canvas */
  const toScreen = (n) => [shown.places[n][0] * view.scale * view.wide + view.x, shown.places[n][1] * view.scale + view.y];

  /** Show all nodes, or what is marked. */
  function fit() {
    const { width, height } = canvas.getBoundingClientRect();
    const chosen = marked.any ? [...marked.nodes].map((n) => shown.places[n]) : shown.places;
    const [xs, ys] = [0, 1].map((d) => chosen.map((place) => place[d]));
    const [left, top] = [minimum(xs), minimum(ys)];
    const [across, high] = [Math.max(1, maximum(xs) - left), Math.max(1, maximum(ys) - top)];
    const [free, room] = [width - 4 * MARGIN_PIXELS, height - 2 * MARGIN_PIXELS];
    const scale = Math.min(free / across, room / high, marked.any ? MAX_REVEAL_SCALE : MAX_FIT_SCALE);
    const wide = shown === network ? 1 : Math.max(1, Math.min(MAX_STRETCH, free / (across * scale)));
    view = { scale, wide, x: (width - across * scale * wide) / 2 - left * scale * wide, y: (height - high * scale) / 2 - top * scale };
    draw();
  }

  function draw() {
    const { width, height } = canvas.getBoundingClientRect();
    const ratio = window.devicePixelRatio || 1;
    const [across, high] = [Math.round(width * ratio), Math.round(height * ratio)];
    if (canvas.width !== across || canvas.height !== high) Object.assign(canvas, { width: across, height: high });
    const style = getComputedStyle(canvas);
    const color = (name) => style.getPropertyValue(name).trim();
    const columns = shown === network ? null : new Map(data.nodes.map(({ time }, n) => [time, toScreen(n)[0]]));
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    paintNetwork(context, { ...fixed, ...shown, columns, marked }, { width, height, scale: view.scale, toScreen, color });
  }

  /** @returns {import("./graph.js").Selection} */
  function findAt(x, y) {
    const distances = shown.places.map((_, n) => Math.hypot(toScreen(n)[0] - x, toScreen(n)[1] - y));
    const nearest = distances.indexOf(minimum(distances));
    if (distances[nearest] <= HIT_PIXELS) return { kind: "node", number: nearest };
    const gaps = shown.lines.map((line) => distanceToPath([x, y], tracePath(line, toScreen)));
    const edge = gaps.indexOf(minimum(gaps));
    return gaps[edge] <= HIT_PIXELS ? { kind: "edge", number: edge } : { kind: "none" };
  }

  function zoom(factor, x, y) {
    const scale = Math.min(60, Math.max(0.02, view.scale * factor));
    const change = scale / view.scale;
    view = { ...view, scale, x: x - (x - view.x) * change, y: y - (y - view.y) * change };
    draw();
  }

  function pan(dx, dy) {
    view = { ...view, x: view.x + dx, y: view.y + dy };
    draw();
  }

  followPointer(canvas, {
    pan,
    zoom,
    tap: (x, y) => choose(findAt(x, y)),
    hover: (x, y) => canvas.classList.toggle("over", findAt(x, y).kind !== "none"),
  });
  followKeys(canvas, { pan, zoom });
  new ResizeObserver(() => fit()).observe(canvas);
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);

  return {
    fit,
    /** @param {boolean} byTime */
    arrange(byTime) {
      shown = byTime ? chronology : network;
      fit();
    },
    /**
     * @param {import("./graph.js").Selection} selection
     * @param {boolean} reveal
     */
    select(selection, reveal) {
      marked = markSelection(data, selection);
      if (reveal) fit();
      else draw();
    },
  };
}

/** The edges with their directions; past other columns they are curved, so that they do not lie on each other. */
function listLines(data, columns) {
  const key = (a, b) => `${Math.min(a, b)} ${Math.max(a, b)}`;
  const sources = new Map(data.sources.map(({ source, copy }) => [key(source, copy), source]));
  return data.edges.map(({ a, b }) => ({
    a,
    b,
    source: sources.get(key(a, b)) ?? null,
    isCurved: columns !== null && Math.abs(columns[a] - columns[b]) !== 1,
  }));
}

function makeChronology(data) {
  const { places, columns } = arrangeByTime(data);
  return { places, lines: listLines(data, columns) };
}

/** Spreading an array of ten thousand numbers into Math.min is slow and may overflow the stack. */
function minimum(values) {
  return values.reduce((least, value) => Math.min(least, value), Infinity);
}

function maximum(values) {
  return values.reduce((most, value) => Math.max(most, value), -Infinity);
}

/** The nodes and edges that belong to what was chosen. */
function markSelection(data, selection) {
  const nodes = new Set();
  const edges = new Set();
  if (selection.kind === "edge") {
    edges.add(selection.number);
    nodes.add(data.edges[selection.number].a).add(data.edges[selection.number].b);
  } else if (selection.kind === "node") {
    nodes.add(selection.number);
    data.edges.forEach(({ a, b }, n) => (a === selection.number || b === selection.number) && edges.add(n));
  } else if (selection.kind === "part") {
    for (const { node: carrier } of data.parts[selection.number].carriers) nodes.add(carrier);
    data.edges.forEach(({ a, b }, n) => nodes.has(a) && nodes.has(b) && edges.add(n));
  } else if (selection.kind === "items") {
    for (const n of selection.numbers) nodes.add(n);
  }
  return { nodes, edges, any: nodes.size > 0 };
}

/** @param {number[]} point @param {number[][]} path */
function distanceToPath(point, path) {
  return minimum(path.slice(1).map((to, k) => distanceToSegment(point, path[k], to)));
}

/** @param {number[]} point @param {number[]} from @param {number[]} to */
function distanceToSegment(point, from, to) {
  const [x, y] = point;
  const [x0, y0] = from;
  const [x1, y1] = to;
  const length = (x1 - x0) ** 2 + (y1 - y0) ** 2;
  const t = length ? Math.min(1, Math.max(0, ((x - x0) * (x1 - x0) + (y - y0) * (y1 - y0)) / length)) : 0;
  return Math.hypot(x - x0 - t * (x1 - x0), y - y0 - t * (y1 - y0));
}

/** Pan by arrows, zoom by + and −. */
function followKeys(canvas, { pan, zoom }) {
  canvas.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: [40, 0], ArrowRight: [-40, 0], ArrowUp: [0, 40], ArrowDown: [0, -40] }[event.key];
    const factor = { "+": 1.4, "=": 1.4, "-": 1 / 1.4 }[event.key];
    const { width, height } = canvas.getBoundingClientRect();
    if (step) pan(step[0], step[1]);
    else if (factor) zoom(factor, width / 2, height / 2);
    else return;
    event.preventDefault();
  });
}

/** Pan with one pointer, zoom with two or the wheel, and tell a tap from a drag. */
function followPointer(canvas, { pan, zoom, tap, hover }) {
  const pointers = new Map();
  let travelled = 0;
  const inside = (event) => {
    const box = canvas.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  };
  canvas.addEventListener("pointerdown", (event) => {
    canvas.setPointerCapture(event.pointerId);
    pointers.set(event.pointerId, inside(event));
    travelled = 0;
  });
  canvas.addEventListener("pointermove", (event) => {
    const here = inside(event);
    const before = pointers.get(event.pointerId);
    if (!before) return hover(here[0], here[1]);
    const others = [...pointers.entries()].filter(([id]) => id !== event.pointerId);
    travelled += Math.hypot(here[0] - before[0], here[1] - before[1]);
    pointers.set(event.pointerId, here);
    if (!others.length) return pan(here[0] - before[0], here[1] - before[1]);
    const other = others[0][1];
    const gap = (place) => Math.hypot(place[0] - other[0], place[1] - other[1]) || 1;
    zoom(gap(here) / gap(before), (here[0] + other[0]) / 2, (here[1] + other[1]) / 2);
  });
  canvas.addEventListener("pointerup", (event) => {
    const place = inside(event);
    pointers.delete(event.pointerId);
    if (travelled < 6) tap(place[0], place[1]);
  });
  canvas.addEventListener("pointercancel", (event) => pointers.delete(event.pointerId));
  canvas.addEventListener(
    "wheel",
    (event) => {
      event.preventDefault();
      const [x, y] = inside(event);
      zoom(Math.exp(-event.deltaY / 400), x, y);
    },
    { passive: false },
  );
}

// @ts-check
// Layout of the two sides, zoom, arcs and ribbons. Does not use the DOM.

import { labelMap, maskCentres, outlines } from "./outlines.js";
import { flowWords, GUTTER, runsOf, exitPath } from "./text.js";
import { captionName } from "./words.js";

const LETTER = 28; // left of a text without a name, for its letter
const LARGEST_TEXT = 1.8; // times the normal size, for texts above each other that do not fill the width

const round = (x) => Math.round(100 * x) / 100;
/** @type {(box: number[]) => number[]} */
const middle = ([top, left, bottom, right]) => [(left + right) / 2, (top + bottom) / 2];
/** @type {(boxes: number[][]) => number[]} */
const boundingBox = (boxes) => [0, 1, 2, 3].map((d) => Math[d < 2 ? "min" : "max"](...boxes.map((box) => box[d])));
const clamp = (t, low, high) => Math.min(Math.max(t, low), high);

/**
 * @param {number[]} box
 * @param {number} [corner] radius of rounded corners
 */
function boxPath([top, left, bottom, right], corner = 0) {
  if (!corner) return `M${left} ${top}H${right}V${bottom}H${left}Z`;
  const turn = (x, y) => `a${corner} ${corner} 0 0 1 ${x * corner} ${y * corner}`;
  return `M${left + corner} ${top}H${right - corner}${turn(1, 1)}V${bottom - corner}${turn(-1, 1)}H${left + corner}${turn(-1, -1)}V${top + corner}${turn(1, -1)}Z`;
}

/** Cells to trace outlines on: those of the grid, else the input's pixels; `to` maps their corners to the image. */
function cellsOf({ places, count }, to) {
  if (!places.grid) {
    const map = labelMap(places);
    return { width: places.width, height: places.height, map, to, count };
  }
  const [high, wide] = places.grid;
  const lefts = [...places.boxes.slice(0, wide).map((box) => box[1]), places.boxes[wide - 1][3]];
  const tops = [...Array.from({ length: high }, (_, k) => places.boxes[k * wide][0]), places.boxes.at(-1)[2]];
  const map = Int32Array.from({ length: count }, (_, i) => i);
  return { width: wide, height: high, map, to: ([x, y]) => to([lefts[x], tops[y]]), count };
}

/** Regions of an image in its pixels; the frame includes padding. */
function pictureShape(side) {
  const { places, view } = side;
  const { box, frame } = view ?? { box: [0, 0, places.width, places.height] };
  const [left, top, right, bottom] = frame ?? box;
  const [across, down] = [(box[2] - box[0]) / places.width, (box[3] - box[1]) / places.height];
  const to = ([x, y]) => [round(box[0] + x * across), round(box[1] + y * down)];
  const boxes = places.boxes.map(([t, l, b, r]) => [...to([l, t]).reverse(), ...to([r, b]).reverse()]);
  const cells = cellsOf(side, to);
  const centres = places.runs ? maskCentres(places, cells.map, side.count).map(to) : boxes.map(middle);
  const paths = places.runs ? outlines(cells, cells.map, side.count, to) : boxes.map((one) => boxPath(one));
  return { words: false, x: left, y: top, width: right - left, height: bottom - top, boxes, centres, paths, cells };
}

/**
 * Extent, paths, centers and boxes of one side in its own units; words also have lines, labels and loose.
 * @returns {any}
 */
export function shapeOf(side, width, measure) {
  if (side.places) return pictureShape(side);
  const flow = flowWords(side, width, measure);
  const paths = flow.boxes.map((box) => boxPath(box, 4));
  return { words: true, x: 0, y: 0, ...flow, paths, centres: flow.boxes.map(middle) };
}

/** One outline around the given regions. */
export function union(shape, chosen) {
  if (shape.words)
    return runsOf(shape, chosen)
      .map(({ box }) => boxPath(box, 4))
      .join("");
  if (chosen.size < 2) return [...chosen].map((i) => shape.paths[i]).join("");
  const { cells } = shape;
  const one = cells.map.map((i) => (chosen.has(i) ? 0 : -1));
  return outlines(cells, one, 1, cells.to, shape.boxes.length > 1)[0];
}

/** The smallest box around some regions. */
export const boxAround = (shape, set) => boundingBox(set.map((i) => shape.boxes[i]));

/** How many lines a text takes at this width. */
const linesOf = (side, width, measure) => 1 + Math.max(...shapeOf(side, width, measure).lines);

/** Whether b is below a: on narrow screens, and for texts of one or two lines. */
function isStacked(data, width, measure) {
  if (data.a.places || data.b.places) return width < 600;
  return width < 700 || Math.max(linesOf(data.a, width, measure), linesOf(data.b, width, measure)) <= 2;
}

/** Layout of the two sides on a stage of this width, each at most `tall`: {stacked, width, height, a, b}. */
export function layout(data, width, tall, head, measure) {
  const stacked = isStacked(data, width, measure);
  const words = ["a", "b"].filter((side) => !data[side].places).length;
  const gap = stacked ? (words === 2 ? 110 : 44) : clamp(width * 0.13, 56, 160);
  const most = stacked ? width : (width - gap) / 2;
  const room = (side) => (stacked && !side.places ? most - GUTTER - LETTER : most);
  const fit = (side, scaleOfText = 1) => {
    const shape = shapeOf(side, room(side), measure);
    const scale = shape.words ? scaleOfText : Math.min(most / shape.width, tall / shape.height);
    return { shape, w: shape.width * scale, h: shape.height * scale };
  };
  let [a, b] = [fit(data.a), fit(data.b)];
  if (stacked) {
    const fill = words === 2 ? clamp(room(data.a) / Math.max(a.w, b.w), 1, LARGEST_TEXT) : 1;
    if (fill > 1) [a, b] = [fit(data.a, fill), fit(data.b, fill)];
    return stack(data, width, head, gap, a, b);
  }
  const left = (width - a.w - b.w - gap) / 2;
  const height = Math.max(a.h, b.h);
  const place = (side, x) => {
    const y = head + (words === 2 ? 0 : (height - side.h) / 2);
    return { ...side, x, y, caption: [x, y - head] };
  };
  return { stacked, width, height: head + height, a: place(a, left), b: place(b, left + a.w + gap) };
}

/** b below a, with nothing but ribbons between them: the name of b is below it, the letter of a text left of it. */
function stack(data, width, head, gap, a, b) {
  const isBeside = (side, panel) => panel.shape.words && !captionName(data, side);
  const x = (panel) => (panel.shape.words ? LETTER : (width - panel.w) / 2);
  const top = isBeside("a", a) ? 4 : head;
  const below = top + a.h + gap;
  const caption = (side, panel, y, away) => (isBeside(side, panel) ? [0, y - 1] : [panel.shape.words ? 0 : x(panel), away]);
  const height = below + b.h + (isBeside("b", b) ? 0 : head);
  return {
    stacked: true,
    width,
    height,
    a: { ...a, x: x(a), y: top, caption: caption("a", a, top, 0) },
    b: { ...b, x: x(b), y: below, caption: caption("b", b, below, below + b.h + 2) },
  };
}

/** The part of a side that is visible at this zoom: [x, y, width, height]. */
export function view({ shape }, { k, x, y }) {
  const w = shape.width / k;
  const h = shape.height / k;
  const keep = (centre, size, start, all) => clamp(centre - size / 2, start, start + all - size);
  return [
    keep(x ?? shape.x + shape.width / 2, w, shape.x, shape.width),
    keep(y ?? shape.y + shape.height / 2, h, shape.y, shape.height),
    w,
    h,
  ];
}

/**
 * Map a point of a side to the stage; invisible points of an image are clamped to its frame.
 * @param {number[]} point
 */
export function toStage(panel, zoom, point) {
  const [x, y] = point;
  const [vx, vy, vw, vh] = view(panel, zoom);
  const stick = panel.shape.words ? (t) => t : (t) => clamp(t, 0, 1);
  return [panel.x + stick((x - vx) / vw) * panel.w, panel.y + stick((y - vy) / vh) * panel.h];
}

/**
 * Whether a point of a side is visible at this zoom.
 * @param {number[]} point
 */
export function inSight(panel, zoom, point) {
  const [x, y] = point;
  const [vx, vy, vw, vh] = view(panel, zoom);
  return x >= vx && x <= vx + vw && y >= vy && y <= vy + vh;
}

/** The mean center of some regions. */
const centreOf = ({ centres }, set) => [0, 1].map((d) => set.reduce((s, i) => s + centres[i][d], 0) / set.length);

/** The path of an arc out of its side, in the side's own units: from a word's edge, or from the center. */
export function arcEnd(shape, side, set, stacked) {
  return shape.words ? exitPath(shape, runsOf(shape, set)[0], side, stacked) : [centreOf(shape, set)];
}

/**
 * The path of a ribbon out of its side: from the outline of the finding, on the side of the other input.
 * @param {any} shape
 * @param {string} side
 * @param {any} finding
 * @param {boolean} stacked
 */
export function ribbonEnd(shape, side, finding, stacked) {
  const { [side]: set, best } = finding;
  if (shape.words) {
    const run = runsOf(shape, set).find(({ words }) => words.includes(best[side]));
    return exitPath(shape, run, side, stacked);
  }
  const boxes = set.map((i) => shape.boxes[i]);
  /** @type {(point: any) => (box: any) => boolean} */
  const isLevel = ([x, y]) => (stacked ? ([, left, , right]) => left <= x && x <= right : ([top, , bottom]) => top <= y && y <= bottom);
  // regions far apart have nothing at their common center: then the strongest of them
  const middleOf = centreOf(shape, set);
  const [x, y] = boxes.some(isLevel(middleOf)) ? middleOf : shape.centres[best[side]];
  const level = boxes.filter(isLevel([x, y]));
  const edge = (d) => Math[d < 2 ? "min" : "max"](...level.map((box) => box[d]));
  if (stacked) return [[x, edge(side === "a" ? 2 : 0)]];
  return [[edge(side === "a" ? 3 : 1), y]];
}

const formatPoints = (...points) => points.map((point) => point.map(round).join(" ")).join(" ");

/** An SVG path: two paths connected by a cubic curve with the control points of `bend`. */
function curveSegments(from, to, bend) {
  const [a, b] = [from.at(-1), to.at(-1)];
  const out = from.slice(0, -1).map((point) => `${formatPoints(point)}L`);
  const back = to
    .slice(0, -1)
    .reverse()
    .map((point) => `L${formatPoints(point)}`);
  return `M${out.join("")}${formatPoints(a)}C${formatPoints(...bend(a, b), b)}${back.join("")}`;
}

/** An arc from a to b, bent to one side so that pairs in one row do not coincide. */
export function arc(from, to, stacked) {
  if (from.length + to.length > 2) return ribbon(from, to, stacked);
  return curveSegments(from, to, ([ax, ay], [bx, by]) => {
    const bow = 0.06 * (stacked ? by - ay : bx - ax);
    return [0.3, 0.7].map((t) => [ax + t * (bx - ax) + (stacked ? bow : 0), ay + t * (by - ay) - (stacked ? 0 : bow)]);
  });
}

/** A line that leaves one side and enters the other at a right angle. */
export function ribbon(from, to, stacked) {
  return curveSegments(from, to, ([ax, ay], [bx, by]) =>
    stacked
      ? [
          [ax, (ay + by) / 2],
          [bx, (ay + by) / 2],
        ]
      : [
          [(ax + bx) / 2, ay],
          [(ax + bx) / 2, by],
        ],
  );
}

/** The point of a ribbon at t from 0 (a) to 1 (b). */
export function onRibbon([ax, ay], [bx, by], stacked, t) {
  const along = 1.5 * (1 - t) * (1 - t) * t + 1.5 * (1 - t) * t * t + t ** 3;
  const across = 3 * (1 - t) * t * t + t ** 3;
  const [x, y] = stacked ? [across, along] : [along, across];
  return [ax + x * (bx - ax), ay + y * (by - ay)];
}

/** The neighbour of region i in a direction: the nearest center within 45° of it. */
export function neighbour(centres, i, [dx, dy]) {
  const [x, y] = centres[i];
  let best = i;
  let least = Infinity;
  centres.forEach(([cx, cy], j) => {
    const along = (cx - x) * dx + (cy - y) * dy;
    const across = Math.abs((cx - x) * dy) + Math.abs((cy - y) * dx);
    const far = along + 2 * across;
    if (j !== i && along > 1e-9 && across <= along + 1e-9 && far < least) [best, least] = [j, far];
  });
  return best;
}

/**
 * Regions whose center is in the rectangle of two corners.
 * @param {number[][]} centres
 * @param {number[]} from
 * @param {number[]} to
 */
export function within(centres, from, to) {
  const [[x0, y0], [x1, y1]] = [from, to];
  const inside = (t, s, e) => t >= Math.min(s, e) - 1e-9 && t <= Math.max(s, e) + 1e-9;
  return centres.flatMap(([x, y], i) => (inside(x, x0, x1) && inside(y, y0, y1) ? [i] : []));
}

// @ts-check
// Ribbons of findings with numbered badges, and arcs of pairs.

import { node, pool, set } from "./dom.js";
import { arc, arcEnd, inSight, onRibbon, ribbon, ribbonEnd, toStage } from "./geometry.js";
import { ALPHA } from "./scale.js";

export const DASH = "5 4"; // of negative relevance in the colour-blind-safe palette
const WIDEST = 18; // pixels of the strongest finding's ribbon
const WIDEST_BELOW = 10; // between an image and the one below it, where it crosses them
const FULL_WIDTH_SHARE = 0.03; // of the score: a finding with less never has a ribbon of full width
const WIDEST_LANE = 7; // between lines of text
const BADGE = 9; // radius in pixels

export function createLinks() {
  const ribbons = node("svg:g", { class: "ribbons", fill: "none" });
  const arcs = node("svg:g", { class: "arcs", fill: "none", "stroke-width": 1.4, "stroke-linecap": "round" });
  const badges = node("svg:g", { class: "badges", "aria-hidden": "true" });
  // ribbons react to the pointer only between the two sides; on an image the region below reacts
  const between = node("svg:rect");
  const clip = node("svg:clipPath", { id: "between" }, between);
  const hits = node("svg:g", { class: "hits", fill: "none", "clip-path": "url(#between)" });
  const links = node("svg:g", { "aria-hidden": "true" }, clip, ribbons, arcs, hits);
  return { ribbons, arcs, badges, hits, between, links };
}

/** @type {(app: any, side: string, point: number[]) => number[]} */
const onStage = (app, side, point) => toStage(app.layout[side], app.state.zoom[side], point);
const pathOnStage = (app, side, way) => way.map((point) => onStage(app, side, point));

export function paintLinks(app, scene, ink) {
  const { stacked } = app.layout;
  const line = (value) => ({
    stroke: value > 0 ? ink.positive : ink.negative,
    "stroke-dasharray": ink.safe && value < 0 ? DASH : null,
  });
  const ends = (of) => ["a", "b"].map((side) => pathOnStage(app, side, of(app.layout[side].shape, side)));
  const findings = scene.active ? [] : [...scene.findings].reverse(); // the strongest on top
  const top = Math.max(...app.model.findings.map((one) => Math.abs(one.relevance)), FULL_WIDTH_SHARE * app.model.whole);
  pool(app.dom.ribbons, findings.length, "svg:path").forEach((path, k) => {
    const one = findings[k];
    const [from, to] = ends((shape, side) => ribbonEnd(shape, side, one, stacked));
    const isOnImage = stacked && !(app.layout.a.shape.words && app.layout.b.shape.words);
    const widest = from.length + to.length > 2 ? WIDEST_LANE : isOnImage ? WIDEST_BELOW : WIDEST;
    const width = Math.max(2, (widest * Math.abs(one.relevance)) / top);
    set(path, { d: ribbon(from, to, stacked), "stroke-width": width.toFixed(2), "data-finding": one.k });
    set(path, { ...line(one.relevance), "stroke-opacity": ALPHA * scene.scale.strength(one.relevance) });
  });
  paintHits(app);
  pool(app.dom.arcs, scene.arcs.length, "svg:path").forEach((path, k) => {
    const one = scene.arcs[k];
    const [from, to] = ends((shape, side) => arcEnd(shape, side, one.ends[side], stacked));
    set(path, { d: arc(from, to, stacked), ...line(one.value), "stroke-opacity": Number(one.strength.toPrecision(4)) });
  });
  paintBadges(app, [...scene.findings, ...scene.differences], ink);
}

/** Invisible, wider copies of the ribbons that receive pointer events. */
function paintHits({ dom, layout: { stacked, width, height, a, b } }) {
  const [start, stop] = stacked ? [a.y + a.h, b.y] : [a.x + a.w, b.x];
  const gap = Math.max(0, stop - start);
  set(dom.between, stacked ? { x: 0, y: start, width, height: gap } : { x: start, y: 0, width: gap, height });
  const ribbons = [...dom.ribbons.children];
  pool(dom.hits, ribbons.length, "svg:path").forEach((path, k) => {
    const like = (name) => ribbons[k].getAttribute(name);
    set(path, { d: like("d"), "data-finding": like("data-finding"), stroke: "#000", "stroke-opacity": 0 });
    set(path, { "stroke-width": Number(like("stroke-width")) + 8 });
  });
}

/** Candidate positions of the badge of two texts: on the ribbon, because words are too small. */
function spotsOnRibbon(app, one) {
  const [from, to] = ["a", "b"].map((side) =>
    pathOnStage(app, side, ribbonEnd(app.layout[side].shape, side, one, app.layout.stacked)).at(-1),
  );
  return [0.5, 0.4, 0.6, 0.3, 0.7].map((t) => onRibbon(from, to, app.layout.stacked, t));
}

/** Candidate positions of a badge: corners of the outermost regions of the finding. */
function badgeSpots(app, side, one) {
  const { shape } = app.layout[side];
  const boxes = (shape.words ? [one.best[side]] : one[side]).map((i) => shape.boxes[i]);
  const most = (far) => boxes.reduce((best, box) => (far(box) > far(best) ? box : best));
  const corners = [
    [most(([top, left]) => -top - 0.01 * left), 0, 1],
    [most(([top, , , right]) => right - 0.01 * top), 0, 3],
    [most(([, left, bottom]) => bottom - 0.01 * left), 2, 1],
    [most(([, left, bottom]) => 0.01 * bottom - left), 2, 1],
  ];
  const spots = corners.map(([box, y, x]) => [box[x], box[y]]);
  const seen = spots.filter((spot) => inSight(app.layout[side], app.state.zoom[side], spot));
  return seen.map((spot) => onStage(app, side, spot));
}

/** Keep a badge inside the stage. */
const clampToStage = ({ layout }, spot) =>
  spot && [layout.width, layout.height + BADGE].map((all, d) => Math.min(Math.max(spot[d], BADGE + 1), all - BADGE - 1));

function paintBadges(app, findings, ink) {
  const taken = [];
  const free = ([x, y]) => taken.every(([u, v]) => Math.hypot(x - u, y - v) > 2 * BADGE);
  const { a, b } = app.layout;
  const marks = findings.flatMap((one) =>
    (one.side ? [one.side] : a.shape.words && b.shape.words ? ["both"] : ["a", "b"]).flatMap((side) => {
      const spots = side === "both" ? spotsOnRibbon(app, one) : badgeSpots(app, side, one);
      const spot = clampToStage(app, spots.find(free) ?? spots[0]);
      if (spot) taken.push(spot);
      return spot ? [{ one, spot }] : [];
    }),
  );
  const groups = pool(app.dom.badges, marks.length, "svg:g");
  groups.forEach((group, k) => {
    const { one, spot } = marks[k];
    if (!group.childElementCount) group.append(node("svg:circle", { r: BADGE }), node("svg:text"));
    const [circle, text] = group.children;
    const colour = one.relevance > 0 ? ink.positive : ink.negative;
    set(group, {
      transform: `translate(${spot.map((t) => t.toFixed(1)).join(" ")})`,
      "data-finding": one.side ? null : one.k,
      "data-difference": one.side ? one.k : null,
    });
    set(circle, { fill: colour, stroke: ink.paper, "stroke-width": 1.5 });
    set(text, { "text-anchor": "middle", "dominant-baseline": "central", "font-size": 11, "font-weight": 700, fill: ink.onsign });
    text.textContent = one.k + 1;
  });
}

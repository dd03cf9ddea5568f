// @ts-check
// One side on the stage: its image or words, and its regions.
// Colours are set as attributes, so that a saved figure is a copy of the stage.

import { node, pool, set } from "./dom.js";
import { union, view } from "./geometry.js";
import { ALPHA } from "./scale.js";
import { capital, captionName, nameOf, nounOf, ofScore } from "./words.js";

const THIN = { fill: "none", "vector-effect": "non-scaling-stroke", "pointer-events": "none" };

function createRegions(model, side) {
  const { data, shares } = model;
  const paths = Array.from({ length: data[side].count }, (_, i) =>
    node("svg:path", {
      class: "region",
      role: "option",
      "aria-selected": "false",
      "aria-label": `${capital(nameOf(data, side, [i]))}: ${ofScore(shares[side][i], model)}`,
      tabindex: i ? -1 : 0,
      "data-side": side,
      "data-i": i,
      "fill-rule": "evenodd",
      "fill-opacity": 0,
    }),
  );
  const about = `${capital(nounOf(data, side))}s of ${side.toUpperCase()}`;
  const list = node("svg:g", { role: "listbox", "aria-label": about, "aria-multiselectable": "true" }, ...paths);
  return { paths, list };
}

/** Hatching for negative relevance in the colour-blind-safe palette; ids are local to the shadow root. */
function createHatch(side) {
  const [ground, line] = [node("svg:rect", { width: 2, height: 2 }), node("svg:path", { d: "M0 0V2" })];
  const about = { id: `hatch-${side}`, patternUnits: "userSpaceOnUse", width: 2, height: 2 };
  return { ground, line, el: node("svg:pattern", about, ground, line) };
}

export function createPanel(model, side) {
  const { places, view: seen } = model.data[side];
  const { paths, list } = createRegions(model, side);
  const hatch = createHatch(side);
  const grey = node("svg:filter", { id: `grey-${side}` }, node("svg:feColorMatrix", { type: "saturate", values: 0 }));
  const parts = {
    ground: node("svg:path", { "pointer-events": "none" }), // under words, and where the input was padded
    image: seen?.src && node("svg:image", { href: seen.src, preserveAspectRatio: "none" }),
    unseen: node("svg:path", { class: "unseen", "fill-rule": "evenodd", "pointer-events": "none" }),
    edge: node("svg:path", { class: "edge", ...THIN }),
    veil: node("svg:rect", { class: "veil", "pointer-events": "none" }),
    list,
    letters: node("svg:g", { "aria-hidden": "true", "pointer-events": "none" }),
    findings: node("svg:g", { "aria-hidden": "true", "pointer-events": "none" }),
    outline: node("svg:g", { class: "outline", "aria-hidden": "true" }),
    band: node("svg:rect", { class: "band", ...THIN, display: "none" }),
  };
  const about = { class: `panel ${places ? "placed" : "words"}`, "data-side": side, preserveAspectRatio: "none" };
  const root = node("svg:svg", about, node("svg:defs", {}, hatch.el, grey), ...Object.values(parts));
  return { root, paths, hatch, last: [], ...parts };
}

/** The caption above a side: letter, name and zoom buttons. */
export function createCaption({ data }, side) {
  const letter = side.toUpperCase();
  const button = (text, label, factor) =>
    node("button", { type: "button", "aria-label": `${label} ${letter}`, "data-side": side, "data-zoom": factor }, text);
  const level = button("100 %", "Reset zoom of", 0);
  const tools = node(
    "span",
    { class: "zoom", role: "group", "aria-label": `Zoom of ${letter}` },
    button("−", "Zoom out", 1 / 1.5),
    level,
    button("+", "Zoom in", 1.5),
  );
  const name = captionName(data, side);
  const title = node("span", { class: "name", title: name }, name);
  const el = node("div", { class: "caption" }, node("b", {}, letter), title, data[side].places ? tools : null);
  return { el, level };
}

/** @type {(edges: number[]) => string} */
const rectangle = ([left, top, right, bottom]) => `M${left} ${top}H${right}V${bottom}H${left}Z`;

/** Place the image, and mark what the model did not see and what was padded. */
function placePhotograph({ image, unseen, edge, ground }, { view: seen, places }) {
  if (!seen) return;
  const { box, frame, width, height } = seen;
  if (image) set(image, { x: 0, y: 0, width, height });
  const whole = box.every((t, d) => Math.abs(t - [0, 0, width, height][d]) < 0.01 * Math.max(width, height));
  set(ground, { d: rectangle(frame) });
  set(unseen, { d: whole ? "" : rectangle([0, 0, width, height]) + rectangle(clip(box, width, height)) });
  set(edge, { d: whole ? "" : rectangle(box) });
}

const clip = ([left, top, right, bottom], width, height) => [
  Math.max(left, 0),
  Math.max(top, 0),
  Math.min(right, width),
  Math.min(bottom, height),
];

function placeWords({ letters, ground }, shape) {
  const labels = [...shape.boxes.map((box, i) => ({ text: shape.labels[i] ?? "", box })), ...shape.loose];
  set(ground, { d: shape.paths.join("") });
  pool(letters, labels.length, "svg:text").forEach((el, k) => {
    const { text, box } = labels[k];
    el.textContent = text;
    set(el, { x: (box[1] + box[3]) / 2, y: (box[0] + box[2]) / 2, "text-anchor": "middle" });
    set(el, { "dominant-baseline": "central", "font-size": 17, class: k < shape.boxes.length ? "word" : "loose" });
  });
}

/** Place one side according to the layout. */
export function placePanel(app, side) {
  const panel = app.layout[side];
  const { shape } = panel;
  const nodes = app.dom.panels[side];
  set(nodes.root, { x: panel.x, y: panel.y, width: panel.w, height: panel.h });
  set(nodes.veil, { x: shape.x, y: shape.y, width: shape.width, height: shape.height });
  nodes.paths.forEach((path, i) => set(path, { d: shape.paths[i] }));
  if (shape.words) placeWords(nodes, shape);
  else placePhotograph(nodes, app.model.data[side]);
  const grain = (6 * shape.width) / panel.w / 2; // hatching 6 pixels wide at any scale
  set(nodes.hatch.el, { patternTransform: `rotate(45) scale(${grain})` });
  const caption = app.dom.captions[side].el.style;
  // a letter next to a text must not cover its words
  const isBeside = panel.caption[1] >= panel.y - 1 && panel.caption[1] < panel.y + panel.h;
  const width = isBeside ? panel.x - panel.caption[0] : shape.words ? app.layout.width - panel.caption[0] : panel.w;
  Object.assign(caption, { left: `${panel.caption[0]}px`, top: `${panel.caption[1]}px`, width: `${width}px` });
  applyZoom(app, side);
}

export function applyZoom(app, side) {
  set(app.dom.panels[side].root, { viewBox: view(app.layout[side], app.state.zoom[side]).join(" ") });
  app.dom.captions[side].level.textContent = `${Math.round(100 * app.state.zoom[side].k)} %`;
}

/** Opacity of the layer that fades an image: more while partners are tinted, less below lines. */
const veilOf = (scene, side) =>
  scene.light[side] ? 0.6 : scene.active ? 0 : scene.findings.length + scene.differences.length ? 0 : scene.arcs.length ? 0.35 : 0;

export function paintPanel(app, side, scene, ink) {
  const nodes = app.dom.panels[side];
  const { shape } = app.layout[side];
  const { words } = shape;
  // in grey, so that colours of the image are not mistaken for relevance
  if (nodes.image) set(nodes.image, { filter: scene.light[side] ? `url(#grey-${side})` : null });
  set(nodes.veil, { fill: ink.paper, "fill-opacity": words ? 0 : veilOf(scene, side) });
  set(nodes.ground, { fill: words ? ink.paper : ink.faint });
  set(nodes.unseen, { fill: ink.paper, "fill-opacity": 0.72 });
  set(nodes.edge, { stroke: ink.ink, "stroke-width": 1, "stroke-dasharray": "4 4", "stroke-opacity": 0.55 });
  set(nodes.hatch.ground, { fill: ink.negative, "fill-opacity": 0.45 });
  set(nodes.hatch.line, { stroke: ink.negative, "stroke-width": 1.6 });
  for (const el of nodes.letters.children) set(el, { fill: el.getAttribute("class") === "word" ? ink.ink : ink.soft });
  paintRegions(nodes, scene.light[side], ink, side);
  paintOutlines(nodes, side, scene, shape, ink);
  const { pinned } = app.state;
  const selected = new Set(pinned?.side === side ? pinned.set : pinned?.partner == null ? [] : [pinned.partner]);
  nodes.paths.forEach((path, i) => set(path, { "aria-selected": selected.has(i) }));
}

function paintRegions({ paths, last }, values, ink, side) {
  const negative = ink.safe ? `url(#hatch-${side})` : ink.negative;
  paths.forEach((path, i) => {
    const value = values ? values[i] : 0;
    const key = `${value} ${ink.key}`;
    if (last[i] === key) return;
    last[i] = key;
    set(path, { fill: value < 0 ? negative : ink.positive, "fill-opacity": ALPHA * Math.abs(value) });
    set(path, { "data-sign": Math.sign(value) });
  });
}

/** Outlines of findings and of the selection: a line on a lighter, wider one. */
function paintOutlines(nodes, side, scene, shape, ink) {
  // the strongest on top
  const findings = scene.active ? [] : [...scene.findings, ...scene.differences.filter((one) => one.side === side)];
  const lines = pool(nodes.findings, 2 * findings.length, "svg:path");
  findings.reverse().forEach((one, k) => {
    const d = union(shape, new Set(one[side]));
    set(lines[2 * k], { d, ...THIN, stroke: ink.paper, "stroke-width": 4.5, "stroke-opacity": 0.85 });
    const dash = ink.safe && one.relevance < 0 ? "5 3" : null;
    const colour = one.relevance > 0 ? ink.positive : ink.negative;
    set(lines[2 * k + 1], { d, ...THIN, stroke: colour, "stroke-width": 2, "stroke-dasharray": dash });
    if (!shape.words) set(lines[2 * k], { fill: colour, "fill-opacity": 0.1, "fill-rule": "evenodd" });
  });
  const frame = union(shape, new Set(scene.chosen[side]));
  pool(nodes.outline, 2, "svg:path").forEach((line, k) => {
    const [colour, width] = [
      [shape.words ? ink.paper : "#000", 4.5],
      [shape.words ? ink.ink : "#fff", 2.2],
    ][k];
    set(line, { d: frame, ...THIN, stroke: colour, "stroke-width": width });
  });
}

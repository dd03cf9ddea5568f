// @ts-check
// Lay out the stage and paint the state.

import { sum } from "./data.js";
import { set } from "./dom.js";
import { layout } from "./geometry.js";
import { paintLegend } from "./legend.js";
import { paintLinks } from "./links.js";
import { paintPanel, placePanel } from "./panels.js";
import { describe, partnersOf, sceneOf } from "./scene.js";
import { same } from "./words.js";

const HEAD = 34; // height of the caption above a side
const LEAST = 150; // minimum height of an image in pixels

/** The maximum height of an image, so that both images and the readout fit the window. */
function availableHeight(app, stacked) {
  const window = Math.min(innerHeight, 1000);
  if (stacked) return (window - 2 * HEAD - 44 - 150) / 2;
  return app.compact ? window * 0.5 : Math.min(620, window * 0.56);
}

/** Lay out everything for the current width. */
export function relayout(app) {
  const width = Math.max(240, app.dom.stage.clientWidth); // a hidden frame has no width yet
  const probe = document.createElement("canvas").getContext("2d");
  probe.font = `17px ${getComputedStyle(app.dom.page).fontFamily}`;
  const measure = (word) => probe.measureText(word).width;
  const fit = (tall) => layout(app.model.data, width, Math.max(LEAST, tall), HEAD, measure);
  let tall = availableHeight(app, width < 600);
  applyLayout(app, fit(tall));
  const { stacked, a, b } = app.layout;
  tall = Math.min(tall, Math.max(a.h, b.h)); // a wide image may use less than the maximum
  const over = () => (app.compact && !stacked ? app.dom.page.scrollHeight - innerHeight : 0);
  for (let round = 0; round < 3 && over() > 0 && tall > LEAST; round++) {
    tall -= over();
    applyLayout(app, fit(tall));
  }
}

function applyLayout(app, stageLayout) {
  app.layout = stageLayout;
  const [width, height] = [stageLayout.width, Math.ceil(stageLayout.height) + 2];
  app.dom.stage.style.height = `${height}px`;
  set(app.dom.svg, { viewBox: `0 0 ${width} ${height}`, width, height });
  for (const side of ["a", "b"]) placePanel(app, side);
  paint(app);
}

/** Change the state and repaint. */
export function change(app, values) {
  Object.assign(app.state, values);
  repaint(app);
}

export function repaint(app) {
  if (app.waiting) return;
  app.waiting = true;
  requestAnimationFrame(() => {
    app.waiting = false;
    if (!app.signal.aborted) paint(app);
  });
}

export function paint(app) {
  const scene = sceneOf(app);
  const ink = colours(app);
  for (const side of ["a", "b"]) paintPanel(app, side, scene, ink);
  paintLinks(app, scene, ink);
  const key = JSON.stringify([scene.scale, ink, app.layout.width]);
  if (app.legendKey !== key) paintLegend(app, app.dom.legend, scene.scale, ink);
  app.legendKey = key;
  const words = describe(app, scene);
  if (app.dom.readout.textContent !== words) app.dom.readout.textContent = words;
  // differences have no scale of colours
  app.dom.legend.style.visibility = app.state.plain || app.state.draw === "differences" ? "hidden" : "";
  app.showChosen(chosenValue(app, scene));
  for (const { el, choice } of app.dom.entries) set(el, { "aria-pressed": same(choice, app.state.pinned) });
  emitSelection(app);
}

/**
 * Dispatch an event when the pinned selection changes: regions of a side (and a partner), a finding, or null.
 * Region numbers are those of the full decomposition, special tokens included.
 */
function emitSelection(app) {
  const { pinned } = app.state;
  if (same(app.emitted ?? null, pinned)) return;
  app.emitted = pinned;
  const detail = pinned && selectionDetail(app.model, pinned);
  app.dom.page.dispatchEvent(new CustomEvent("bilrp-chosen", { bubbles: true, composed: true, detail }));
}

function selectionDetail({ data, findings }, { side, set: regions, partner, finding }) {
  const outside = (of, some) => some.map((i) => data[of].numbers?.[i] ?? i);
  if (finding != null) return { finding, a: outside("a", findings[finding].a), b: outside("b", findings[finding].b) };
  const [across] = partner == null ? [null] : outside(side === "a" ? "b" : "a", [partner]);
  return { side, regions: outside(side, regions), partner: across };
}

/** The contribution of the selection to the score; null without a selection. */
function chosenValue(app, { active }) {
  if (!active) return null;
  if (active.difference != null) return null; // of the distance, not of the score
  if (active.finding != null) return app.model.findings[active.finding].relevance;
  const values = partnersOf(app, active);
  return active.partner == null ? sum(values) : values[active.partner];
}

const INK = ["paper", "ink", "soft", "rule", "faint", "positive", "negative", "onsign"];

/** The current colours, cached per theme and palette: reading a computed style forces a layout. */
export function colours(app) {
  const { theme, palette } = app.dom.page.dataset;
  const key = `${theme} ${palette} ${matchMedia("(prefers-color-scheme: dark)").matches}`;
  if (app.ink?.key !== key) {
    const style = getComputedStyle(app.dom.page);
    const values = INK.map((name) => [name, style.getPropertyValue(`--${name}`).trim()]);
    app.ink = { key, safe: palette === "safe", ...Object.fromEntries(values) };
  }
  return app.ink;
}

// Placing everything on the stage, and painting it: the one function that draws what the state says.

import { sum } from "./data.js";
import { arc, layout, toStage } from "./geometry.js";
import { paintPanel, placePanel } from "./panels.js";
import { describe, partnersOf, sceneOf } from "./scene.js";
import { same } from "./words.js";

export const DASH = [5, 4]; // in the colour-blind-safe palette the sign is also in the line

/** Put everything where it belongs at the present width; called at the start and when the width changes. */
export function place(app) {
  const width = Math.max(240, app.dom.stage.clientWidth); // a hidden frame has no width yet
  const tall = Math.max(220, Math.min(620, innerHeight * 0.72));
  const probe = document.createElement("canvas").getContext("2d");
  probe.font = `16px ${getComputedStyle(app.dom.page).fontFamily}`;
  const head = 34; // the line with the letter and the zoom
  const found = layout(app.model.data, width, tall, (word) => probe.measureText(word).width);
  found.a.y += head;
  found.b.y += found.stacked ? 2 * head : head;
  app.layout.panels = found;
  const height = found.height + (found.stacked ? 2 : 1) * head + 2;
  app.layout.size = [width, height];
  app.dom.stage.style.height = `${height}px`;
  app.dom.svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  const density = Math.min(3, devicePixelRatio || 1);
  app.dom.canvas.width = width * density;
  app.dom.canvas.height = height * density;
  app.layout.density = density;
  for (const side of ["a", "b"]) placePanel(app, side);
  paint(app);
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
  for (const side of ["a", "b"]) paintPanel(app, side, scene);
  paintArcs(app, scene.arcs);
  const words = describe(app);
  if (app.dom.readout.textContent !== words) app.dom.readout.textContent = words;
  const chosen = scene.active && partnersOf(app, scene.active);
  const value = chosen && (scene.active.partner == null ? sum(chosen) : chosen[scene.active.partner]);
  app.showChosen(value);
  for (const [k, el] of app.dom.items.entries()) el.setAttribute("aria-pressed", same(app.matches[k], app.state.pinned));
}

/** The present colours; kept until theme or palette change, for reading a style makes the browser lay out the page. */
export function colours(app) {
  const { theme, palette } = app.dom.page.dataset;
  const key = `${theme} ${palette} ${matchMedia("(prefers-color-scheme: dark)").matches}`;
  if (app.ink?.key !== key) {
    const style = getComputedStyle(app.dom.page);
    const names = ["positive", "negative", "paper", "ink", "rule", "veil"];
    const found = names.map((name) => [name, style.getPropertyValue(`--${name}`).trim()]);
    app.ink = { key, safe: palette === "safe", ...Object.fromEntries(found) };
  }
  return app.ink;
}

export const arcPoints = (app, { from, to }) =>
  arc(
    toStage(app.layout.panels.a, app.state.zoom.a, from),
    toStage(app.layout.panels.b, app.state.zoom.b, to),
    app.layout.panels.stacked,
  );

function paintArcs(app, arcs) {
  const pen = app.dom.canvas.getContext("2d");
  const { positive, negative, safe } = colours(app);
  pen.setTransform(app.layout.density, 0, 0, app.layout.density, 0, 0);
  pen.clearRect(0, 0, ...app.layout.size);
  pen.lineWidth = 1.3;
  pen.lineCap = "round";
  for (const one of arcs) {
    const [ax, ay, c, d, e, f, bx, by] = arcPoints(app, one);
    pen.globalAlpha = one.alpha;
    pen.strokeStyle = one.value > 0 ? positive : negative;
    pen.setLineDash(safe && one.value < 0 ? DASH : []);
    pen.beginPath();
    pen.moveTo(ax, ay);
    pen.bezierCurveTo(c, d, e, f, bx, by);
    pen.stroke();
  }
  app.dom.canvas.dataset.arcs = arcs.length;
}

/** Change what the reader chose, and paint it. */
export function change(app, values) {
  Object.assign(app.state, values);
  repaint(app);
}

// @ts-check
// Switches and sliders.

import { save } from "./export.js";
import { leadParts } from "./header.js";
import { listAll } from "./matches.js";
import { repaint } from "./paint.js";
import { shortNumber } from "./words.js";

const RANGE = { l: 3, h: 2.5 }; // decades that the two logarithmic sliders cover
const STEPS = 500;

/** The maximum of a slider: the strongest pair, but at least the paper's parameters. */
function ceiling({ strongestPair, unit }, name) {
  const top = Math.max(1, strongestPair / unit);
  return name === "p" ? 4 : name === "h" ? Math.max(60, top) : top;
}

function fromSlider(app, name, step) {
  if (name === "p") return Math.round((0.25 + (3.75 * step) / STEPS) * 100) / 100;
  if (name === "l" && step === 0) return 0;
  return ceiling(app.model, name) * 10 ** (-RANGE[name] * (1 - step / STEPS));
}

function toSlider(app, name, value) {
  if (name === "p") return (STEPS * (value - 0.25)) / 3.75;
  if (value <= 0) return 0;
  return STEPS * (1 + Math.log10(value / ceiling(app.model, name)) / RANGE[name]);
}

/** Show the state in the controls. */
export function showControls(app) {
  const { elements } = app.dom.controls;
  const { state } = app;
  for (const name of ["l", "h", "p"]) {
    const text = shortNumber(state.drawing[name]);
    Object.assign(elements[name], { min: 0, max: STEPS, step: 1 });
    elements[name].value = Math.round(toSlider(app, name, state.drawing[name]));
    elements[name].setAttribute("aria-valuetext", text);
    elements[name].parentElement.querySelector("output").textContent = text;
  }
  elements.paper.checked = state.paper;
  elements.draw.value = state.draw;
  for (const button of app.dom.switch.children)
    button.setAttribute("aria-pressed", button.dataset.draw ? button.dataset.draw === state.draw && !state.plain : state.plain);
}

/** Set one parameter; the other is moved so that l < h. */
function withParameter(drawing, name, value) {
  const next = { ...drawing, [name]: value };
  if (next.l >= next.h) Object.assign(next, name === "l" ? { h: next.l * 1.1 } : { l: next.h / 1.1 });
  return next;
}

/** The state for Algorithm 1, which draws pairs. */
const paperState = (state) => ({ paper: true, draw: ["findings", "differences"].includes(state.draw) ? "pairs" : state.draw });

/** The change of state when a control was used. */
function applyControl(app, { type, name, value, checked }) {
  const { state, model } = app;
  if (type === "range") return { drawing: withParameter(state.drawing, name, fromSlider(app, name, Number(value))), ...paperState(state) };
  if (name === "style") return { drawing: { ...(model.data.styles[value] ?? model.data.drawing) }, ...paperState(state) };
  if (name === "paper") return checked ? paperState(state) : { paper: false };
  if (name === "draw") return { draw: value, plain: false };
  return { shown: { ...state.shown, [name]: checked } };
}

export function listenControls(app) {
  const form = app.dom.controls;
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("input", ({ target }) => {
    if (target.name === "safe") return setLook(app, { palette: target.checked ? "safe" : "paper" });
    if (target.name === "theme") return setLook(app, { theme: target.value });
    if (target.type === "range") form.elements.style.value = "";
    Object.assign(app.state, applyControl(app, target));
    showControls(app);
    if (target.name in app.state.shown || target.name === "draw") listAll(app);
    return repaint(app);
  });
  app.dom.switch.addEventListener("click", ({ target }) => {
    const { draw } = target.dataset;
    if (!target.matches("button")) return;
    if (draw) Object.assign(app.state, { draw, plain: false, pinned: null, listed: null, peek: null });
    else app.state.plain = !app.state.plain;
    showControls(app);
    listAll(app);
    repaint(app);
  });
  form.addEventListener("click", ({ target }) => {
    if (target.dataset.save) save(app, target.dataset.save);
  });
  const dark = matchMedia("(prefers-color-scheme: dark)");
  dark.addEventListener("change", () => repaint(app), { signal: app.signal });
}

/** Set theme and palette as attributes of the page, which the style sheet uses. */
export function setLook(app, look) {
  Object.assign(app.dom.page.dataset, look);
  app.dom.lead.replaceChildren(...leadParts(app.model.data, app.dom.page.dataset.palette === "safe"));
  repaint(app);
}

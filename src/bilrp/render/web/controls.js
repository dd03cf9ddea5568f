// Sliders and switches.

import { leadParts } from "./header.js";
import { save } from "./export.js";
import { listMatches } from "./matches.js";
import { repaint } from "./paint.js";
import { shortNumber } from "./words.js";

const RANGE = { l: 3, h: 2.5 }; // decades that the two logarithmic sliders cover
const STEPS = 500;

const ceiling = (app, name) => (name === "p" ? 4 : name === "h" ? Math.max(60, app.model.top) : app.model.top);

function fromSlider(app, name, step) {
  if (name === "p") return Math.round((0.25 + (3.75 * step) / STEPS) * 100) / 100;
  if (name === "l" && step === 0) return 0;
  return ceiling(app, name) * 10 ** (-RANGE[name] * (1 - step / STEPS));
}

function toSlider(app, name, value) {
  if (name === "p") return (STEPS * (value - 0.25)) / 3.75;
  if (value <= 0) return 0;
  return STEPS * (1 + Math.log10(value / ceiling(app, name)) / RANGE[name]);
}

export function showDrawing(app) {
  for (const name of ["l", "h", "p"]) {
    const input = app.dom.controls.elements[name];
    const text = shortNumber(app.state.drawing[name]);
    Object.assign(input, { min: 0, max: STEPS, step: 1 });
    input.value = Math.round(toSlider(app, name, app.state.drawing[name]));
    input.setAttribute("aria-valuetext", text);
    input.parentElement.querySelector("output").textContent = text;
  }
}

/** l stays below h: the slider that moves pushes the other along. */
function setDrawing(app, name, value) {
  const next = { ...app.state.drawing, [name]: value };
  if (next.l >= next.h) Object.assign(next, name === "l" ? { h: next.l * 1.1 } : { l: next.h / 1.1 });
  app.state.drawing = next;
  showDrawing(app);
  repaint(app);
}

export function listenControls(app) {
  const form = app.dom.controls;
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("input", ({ target }) => {
    if (target.type === "range") {
      form.elements.style.value = "";
      setDrawing(app, target.name, fromSlider(app, target.name, Number(target.value)));
    } else if (target.name === "style") {
      app.state.drawing = { ...(app.model.data.styles[target.value] ?? app.model.data.drawing) };
      showDrawing(app);
      repaint(app);
    } else if (target.name === "safe") {
      setLook(app, "palette", target.checked ? "safe" : "paper");
    } else if (target.name === "theme") {
      setLook(app, "theme", target.value);
    } else {
      app.state.shown = { ...app.state.shown, [target.name]: target.checked };
      listMatches(app);
      repaint(app);
    }
  });
  form.addEventListener("click", ({ target }) => {
    if (target.dataset.save) save(app, target.dataset.save);
  });
  const dark = matchMedia("(prefers-color-scheme: dark)");
  dark.addEventListener("change", () => repaint(app), { signal: app.signal });
}

/** Theme and palette are attributes of the page: the style sheet reads them. */
export function setLook(app, key, value) {
  app.dom.page.dataset[key] = value;
  app.dom.lead.replaceChildren(...leadParts(app.model.data, app.dom.page.dataset.palette === "safe"));
  repaint(app);
}

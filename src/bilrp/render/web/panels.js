// One side on the stage: its picture or words, its regions, and what is painted on them.

import { node } from "./dom.js";
import { union, view } from "./geometry.js";
import { capital, nameOf, nounOf, percent } from "./words.js";

const setAll = (el, values) => Object.entries(values).forEach(([key, value]) => el.setAttribute(key, value));

export function createPanel({ data, shares, whole }, side) {
  const { picture, count, names, places } = data[side];
  const paths = Array.from({ length: count }, (_, i) =>
    node("svg:path", {
      class: "region",
      role: "option",
      "aria-selected": "false",
      "aria-label": `${capital(nameOf(data, side, i))}: ${percent(shares[side][i], whole)} of the score`,
      tabindex: i ? -1 : 0,
      "data-side": side,
      "data-i": i,
      "fill-opacity": 0,
    }),
  );
  const words = places
    ? []
    : (names ?? paths.map((_, i) => `${i + 1}`)).map((name) => node("svg:text", { "aria-hidden": "true" }, name));
  const about = `${capital(nounOf(data))}s of ${side.toUpperCase()}`;
  const list = node("svg:g", { role: "listbox", "aria-label": about, "aria-multiselectable": "true" }, ...paths);
  const hatch = node(
    "svg:pattern",
    // A shadow root has ids of its own: this one is seen by this page only.
    { id: `hatch-${side}`, patternUnits: "userSpaceOnUse", width: 2, height: 2, patternTransform: "rotate(45)" },
    node("svg:rect", { width: 2, height: 2, class: "hatch-ground" }),
    node("svg:path", { d: "M0 0V2", class: "hatch-line" }),
  );
  const image = picture && node("svg:image", { href: picture, preserveAspectRatio: "none" });
  const veil = node("svg:rect", { class: "veil" });
  const outline = node("svg:path", { class: "outline", "aria-hidden": "true" });
  const band = node("svg:rect", { class: "band", hidden: "" });
  const root = node(
    "svg:svg",
    { class: `panel ${places ? "placed" : "words"}`, "data-side": side, preserveAspectRatio: "none" },
    node("svg:defs", {}, hatch),
  );
  if (image) root.append(image);
  root.append(veil, list, outline, ...words, band);
  return { root, image, veil, paths, words, outline, band, hatch, last: [] };
}

/** The line above a side: its letter, its name, and the zoom (which `actions` listens to). */
export function createCaption({ data }, side) {
  const letter = side.toUpperCase();
  const button = (text, label, factor) =>
    node(
      "button",
      { type: "button", "aria-label": `${label} ${letter}`, "data-side": side, "data-zoom": factor },
      text,
    );
  const level = button("100 %", "Reset zoom of", 0);
  const tools = node(
    "span",
    { class: "zoom", role: "group", "aria-label": `Zoom of ${letter}` },
    button("−", "Zoom out", 1 / 1.5),
    level,
    button("+", "Zoom in", 1.5),
  );
  const name = data.names?.[side === "a" ? 0 : 1] ?? "";
  const title = node("span", { class: "name", title: name }, name);
  return { el: node("div", { class: "caption" }, node("b", {}, letter), title, tools), level };
}

/** Put one side where the layout says. */
export function placePanel(app, side) {
  const panel = app.layout.panels[side];
  const { shape } = panel;
  const { root, image, veil, paths, words, hatch } = app.dom.nodes[side];
  setAll(root, { x: panel.x, y: panel.y, width: panel.w, height: panel.h });
  for (const el of [image, veil]) if (el) setAll(el, { width: shape.width, height: shape.height });
  paths.forEach((path, i) => path.setAttribute("d", shape.paths[i]));
  words.forEach((word, i) => {
    const [x, y] = shape.centres[i];
    setAll(word, { x, y, "text-anchor": "middle", "dominant-baseline": "central" });
  });
  const grain = (6 * shape.width) / panel.w / 2; // hatching 6 pixels wide at any scale
  hatch.setAttribute("patternTransform", `rotate(45) scale(${grain})`);
  const caption = app.dom.captions[side].el.style;
  Object.assign(caption, { left: `${panel.x}px`, top: `${panel.y - 34}px`, width: `${panel.w}px` });
  applyZoom(app, side);
}

export function applyZoom(app, side) {
  app.dom.nodes[side].root.setAttribute("viewBox", view(app.layout.panels[side], app.state.zoom[side]).join(" "));
  app.dom.captions[side].level.textContent = `${Math.round(100 * app.state.zoom[side].k)} %`;
}

export function paintPanel(app, side, { light, chosen, active }) {
  const { root, paths, outline, last } = app.dom.nodes[side];
  const { pinned, shown } = app.state;
  const frame = union(app.layout.panels[side].shape, chosen[side]);
  if (outline.getAttribute("d") !== frame) outline.setAttribute("d", frame);
  const values = light[side];
  root.classList.toggle("lit", Boolean(values));
  root.classList.toggle("quiet", !active && shown.arcs);
  paths.forEach((path, i) => {
    const value = values ? values[i] : 0;
    if (last[i] === value) return;
    last[i] = value;
    path.setAttribute("class", `region${value > 0 ? " positive" : value < 0 ? " negative" : ""}`);
    path.setAttribute("fill-opacity", Math.abs(value));
  });
  const selected = new Set(pinned?.side === side ? pinned.set : pinned?.partner == null ? [] : [pinned.partner]);
  paths.forEach((path, i) => {
    const is = String(selected.has(i));
    if (path.getAttribute("aria-selected") !== is) path.setAttribute("aria-selected", is);
  });
}

// @ts-check
// Save the current view as SVG or PNG: a copy of the stage with names, legend and texts.

import { breakdownDigits, breakdownRows } from "./breakdown.js";
import { node, SVG } from "./dom.js";
import { colours, paint } from "./paint.js";
import { activeOf } from "./scene.js";
import { measureName, formatNumber, shortNumber, formatSigned } from "./words.js";

const FONT = "system-ui, sans-serif";
const MARGIN = 24;

/** Break a text into lines of at most this width. */
function wrapText(words, width, size) {
  const pen = document.createElement("canvas").getContext("2d");
  pen.font = `${size}px ${FONT}`;
  const lines = [""];
  for (const word of words.split(" ")) {
    const longer = lines.at(-1) ? `${lines.at(-1)} ${word}` : word;
    if (lines.at(-1) && pen.measureText(longer).width > width) lines.push(word);
    else lines[lines.length - 1] = longer;
  }
  return lines;
}

/** The texts below the figure: the readout, the score breakdown and the parameters. */
function footerLines({ model, state, dom }) {
  const { breakdown } = model.data;
  const digits = breakdownDigits(breakdown);
  const parts = breakdownRows(breakdown).filter(([name]) => name !== "score");
  const terms = parts.map(([name, label]) => `${formatSigned(breakdown[name], digits)} ${label}`);
  const { l, h, p } = state.drawing;
  const drawn = state.paper ? ` · Algorithm 1: l ${shortNumber(l)}, h ${shortNumber(h)}, p ${shortNumber(p)}` : "";
  const total = `${terms.join(", ")} = ${formatNumber(breakdown.score, digits)} ${measureName(model.data)}${drawn} · bilrp`;
  return [activeOf({ state }) ? dom.readout.textContent : "", total];
}

/** A block of text: [elements, y of its end]. */
function block(text, y, width, size, fill) {
  if (!text) return [[], y];
  const lines = wrapText(text, width, size);
  const step = Math.round(1.45 * size);
  const elements = lines.map((line, k) => node("svg:text", { x: 0, y: y + size + k * step, "font-size": size, fill }, line));
  return [elements, y + lines.length * step + 6];
}

/** Replace non-scaling strokes, which only browsers support, by widths in the units of the side. */
function scaleStrokes(panel) {
  const zoom = Number(panel.getAttribute("width")) / Number(panel.getAttribute("viewBox").split(" ")[2]);
  for (const el of panel.querySelectorAll("[vector-effect]")) {
    el.removeAttribute("vector-effect");
    for (const name of ["stroke-width", "stroke-dasharray"]) {
      const numbers = el.getAttribute(name)?.split(" ");
      if (numbers) el.setAttribute(name, numbers.map((t) => (t / zoom).toFixed(3)).join(" "));
    }
  }
}

/** A copy of the stage without interactive attributes. */
function copyOfStage(app) {
  const copy = app.dom.svg.cloneNode(true);
  for (const el of copy.querySelectorAll("[tabindex], [role], [aria-label], [aria-selected], [data-i]"))
    for (const { name } of [...el.attributes]) if (/^(tabindex|role|aria-.*|data-.*)$/.test(name)) el.removeAttribute(name);
  for (const el of copy.querySelectorAll(".region")) if (el.getAttribute("fill-opacity") === "0") el.remove();
  for (const el of copy.querySelectorAll("[display=none], .hits")) el.remove();
  for (const panel of copy.querySelectorAll(".panel")) scaleStrokes(panel);
  copy.removeAttribute("class");
  return copy;
}

/** A side's letter and name above it. */
function captionOf(app, side, ink, y) {
  const [x, top] = app.layout[side].caption;
  const at = { x, y: y + top + 22, fill: ink.ink };
  const name = node("svg:tspan", { dx: 8, "font-size": 13, "font-weight": 400, fill: ink.soft });
  name.textContent = app.model.data.names?.[side === "a" ? 0 : 1] ?? "";
  return node("svg:text", { ...at, "font-size": 17, "font-weight": 600 }, side.toUpperCase(), name);
}

/** The current view as an <svg> element with embedded images and resolved colours. */
export function figure(app) {
  paint(app);
  const ink = colours(app);
  const width = app.layout.width;
  const [heading, top] = block(app.dom.summary.textContent, 0, width, 20, ink.ink);
  const stage = copyOfStage(app);
  stage.setAttribute("y", top);
  const below = top + Number(stage.getAttribute("height")) + 12;
  const legend = app.dom.legend.cloneNode(true);
  legend.setAttribute("y", below);
  const [selection, total] = footerLines(app);
  const [readout, middle] = block(selection, below + Number(legend.getAttribute("height")) + 10, width, 14, ink.ink);
  const [breakdown, bottom] = block(total, middle, width, 12, ink.soft);
  const [w, h] = [width + 2 * MARGIN, bottom + 2 * MARGIN];
  return node(
    "svg:svg",
    { xmlns: SVG, width: w, height: h, viewBox: `${-MARGIN} ${-MARGIN} ${w} ${h}`, "font-family": FONT },
    node("svg:title", {}, app.model.data.title),
    node("svg:rect", { x: -MARGIN, y: -MARGIN, width: w, height: h, fill: ink.paper }),
    ...heading,
    stage,
    ...["a", "b"].map((side) => captionOf(app, side, ink, top)),
    legend,
    ...readout,
    ...breakdown,
  );
}

function download(blob, ending) {
  const link = node("a", { href: URL.createObjectURL(blob), download: `bilrp.${ending}` });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

export async function save(app, kind) {
  const text = new XMLSerializer().serializeToString(figure(app));
  if (kind === "svg") return download(new Blob([text], { type: "image/svg+xml" }), "svg");
  const image = new Image();
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(text)}`;
  await image.decode();
  const canvas = node("canvas", { width: 2 * image.width, height: 2 * image.height });
  canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
  return canvas.toBlob((blob) => download(blob, "png"));
}

// @ts-check
// An item with its heat map: an image with coloured regions, or words with coloured backgrounds. Not interactive.

import { node } from "../page/dom.js";
import { shapeOf } from "../page/geometry.js";
import { isMark, pieces } from "../page/text.js";

const LEVELS = 10; // of opacity, so that many regions need few paths
const ALPHA = 0.72;

/** Colour strength of each value, in [-1, 1]: linear from half of the mean |value| (0) to the largest (1). */
export function strengths(values) {
  const sizes = values.map(Math.abs);
  const least = sizes.reduce((s, v) => s + v, 0) / (2 * sizes.length);
  const most = sizes.reduce((s, v) => Math.max(s, v), 0);
  return values.map((v) => (most > least ? Math.sign(v) * Math.max(0, (Math.abs(v) - least) / (most - least)) : 0));
}

/** Regions of one sign and strength as one path. */
function layers(shape, values) {
  const byLevel = new Map();
  strengths(values).forEach((s, i) => {
    const level = Math.round(s * LEVELS);
    if (level) byLevel.set(level, (byLevel.get(level) ?? "") + shape.paths[i]);
  });
  return [...byLevel].map(([level, d]) =>
    node("svg:path", { d, class: level > 0 ? "for" : "against", "fill-opacity": (ALPHA * Math.abs(level)) / LEVELS }),
  );
}

/** The image at a URL with its regions coloured by value. */
function picture(side, values, src, label) {
  const shape = shapeOf(side, 0, null);
  const { width, height } = side.view ?? shape;
  const image = node("svg:image", { href: src, x: 0, y: 0, width, height, preserveAspectRatio: "none" });
  const box = [shape.x, shape.y, shape.width, shape.height].join(" ");
  const about = { viewBox: box, class: values ? "heat lit" : "heat", role: "img", "aria-label": label };
  return node("svg:svg", about, image, ...(values ? layers(shape, values) : []));
}

/** The text with the background of each word coloured by value; special tokens are left out. */
function words(side, values, label) {
  const shown = values ? strengths(values) : [];
  const said = pieces(side).filter(({ i }) => i === null || !isMark(side, i));
  const spans = said.map(({ text, i, space }, k) => {
    const el = node("span", { class: k && !space ? "close" : null }, text);
    const sign = shown[i] > 0 ? "positive" : "negative";
    if (shown[i]) el.style.background = `color-mix(in srgb, var(--${sign}) ${Math.round(60 * Math.abs(shown[i]))}%, transparent)`;
    return el;
  });
  const spaced = spans.flatMap((el, k) => (k && said[k].space ? [" ", el] : [el]));
  return node("p", { class: "heat words", "aria-label": label, role: "img" }, ...spaced);
}

/** The heat map of a side; `src` is the URL of its image, and without `values` nothing is coloured. */
export const heat = (side, values, src, label) => (side.places ? picture(side, values, src, label) : words(side, values, label));

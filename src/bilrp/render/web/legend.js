// @ts-check
// The colour scale with its values as shares of the score.

import { node, set } from "./dom.js";
import { ALPHA, ticks } from "./scale.js";
import { ofScore, percent } from "./words.js";

const BAR = 190; // maximum length in pixels of the bar of one sign
const GAP = 26; // between the two bars
const SHADES = 38;

const LEGEND_HIGH = 46;

/** The meaning of the two colours. */
export const signWords = ({ distance }) =>
  distance ? ["makes the two closer", "sets the two apart"] : ["makes the two less similar", "makes the two more similar"];

const fewWords = ({ distance }) => (distance ? ["closer", "apart"] : ["less similar", "more similar"]);
const FULL_LABELS = 330; // pixels that both full labels need

/** Draw both bars, their ticks and their labels into an <svg>. */
export function paintLegend(app, svg, scale, ink) {
  const { model, state } = app;
  const bar = Math.min(BAR, (app.layout.width - GAP - 40) / 2);
  const width = 2 * bar + GAP + 40;
  const labels = 2 * bar + GAP < FULL_LABELS ? fewWords(model.data) : signWords(model.data);
  const at = (sign, strength) => 20 + bar + (sign < 0 ? -strength * bar : GAP + strength * bar);
  const children = [];
  for (const [sign, colour, words] of [
    [-1, ink.negative, labels[0]],
    [1, ink.positive, labels[1]],
  ]) {
    for (let k = 0; k < SHADES; k++) {
      const [x, y] = [at(sign, k / SHADES), at(sign, (k + 1) / SHADES)];
      const box = { x: Math.min(x, y), y: 18, width: Math.abs(y - x) + 0.3, height: 9 };
      const dashed = ink.safe && sign < 0 && k % 4 === 3;
      children.push(node("svg:rect", { ...box, fill: colour, "fill-opacity": dashed ? 0 : (ALPHA * (k + 0.5)) / SHADES }));
    }
    const ends = at(sign, 1);
    children.push(label(words, ends, 11, sign < 0 ? "start" : "end", ink.ink));
    for (const value of spreadLabels(ticks(scale, model, state), scale, bar)) {
      const x = at(sign, scale.strength(value));
      children.push(node("svg:path", { d: `M${x} 27v4`, stroke: ink.soft }));
      children.push(label(tickWords(sign * value, model.whole), x, 42, "middle", ink.soft));
    }
  }
  const least = `±${tickWords(scale.low, model.whole)}`;
  children.push(label(least, width / 2, 42, "middle", ink.soft));
  svg.replaceChildren(...children);
  const about = `Colour: from ${percent(scale.low, model.whole)} to ${ofScore(scale.high, model)}`;
  set(svg, { width, height: LEGEND_HIGH, viewBox: `0 0 ${width} ${LEGEND_HIGH}`, role: "img", "aria-label": about });
  set(svg, { "data-low": scale.low, "data-high": scale.high });
}

/** The values, from the strongest down, whose labels do not overlap. */
function spreadLabels(values, scale, bar) {
  let free = Infinity;
  return values.reverse().filter((value) => {
    const x = bar * scale.strength(value);
    const fits = x < free && x > 58;
    if (fits) free = x - 50;
    return fits;
  });
}

/** A tick value as a percentage with two significant digits. */
const tickWords = (value, whole) => (whole ? shareTick(value, whole) : `${value < 0 ? "−" : ""}${Number(Math.abs(value).toPrecision(2))}`);
const shareTick = (value, whole) => `${value < 0 ? "−" : ""}${Number(Math.abs((100 * value) / whole).toPrecision(2))} %`;

const label = (text, x, y, anchor, fill) => node("svg:text", { x, y, "text-anchor": anchor, "font-size": 11.5, fill }, text);

// The scale in numbers: what a strength of colour means, in shares of the score.

import { node, set } from "./dom.js";
import { ALPHA, ticks } from "./scale.js";
import { percent } from "./words.js";

const BAR = 190; // pixels of the bar of one sign, where there is room
const GAP = 26; // between the two: weaker than anything drawn
const SHADES = 38;

const LEGEND_HIGH = 46;

/** Words for what the two colours do. */
export const signWords = ({ distance }) =>
  distance ? ["makes the two closer", "sets the two apart"] : ["makes the two less similar", "makes the two more similar"];

const fewWords = ({ distance }) => (distance ? ["closer", "apart"] : ["less similar", "more similar"]);
const ROOM = 330; // pixels that both words in full need beside each other

/** Fill an <svg> with both bars, their numbers and their words. */
export function paintLegend(app, svg, scale, ink) {
  const { model, state } = app;
  const bar = Math.min(BAR, (app.layout.width - GAP - 40) / 2);
  const width = 2 * bar + GAP + 40;
  const said = 2 * bar + GAP < ROOM ? fewWords(model.data) : signWords(model.data);
  const at = (sign, strength) => 20 + bar + (sign < 0 ? -strength * bar : GAP + strength * bar);
  const children = [];
  for (const [sign, colour, words] of [
    [-1, ink.negative, said[0]],
    [1, ink.positive, said[1]],
  ]) {
    for (let k = 0; k < SHADES; k++) {
      const [x, y] = [at(sign, k / SHADES), at(sign, (k + 1) / SHADES)];
      const box = { x: Math.min(x, y), y: 18, width: Math.abs(y - x) + 0.3, height: 9 };
      const dashed = ink.safe && sign < 0 && k % 4 === 3;
      children.push(node("svg:rect", { ...box, fill: colour, "fill-opacity": dashed ? 0 : (ALPHA * (k + 0.5)) / SHADES }));
    }
    const ends = at(sign, 1);
    children.push(label(words, ends, 11, sign < 0 ? "start" : "end", ink.ink));
    for (const value of apart(ticks(scale, model, state), scale, bar)) {
      const x = at(sign, scale.strength(value));
      children.push(node("svg:path", { d: `M${x} 27v4`, stroke: ink.soft }));
      children.push(label(tickWords(sign * value, model.whole), x, 42, "middle", ink.soft));
    }
  }
  const least = `±${tickWords(scale.low, model.whole)}`;
  children.push(label(least, width / 2, 42, "middle", ink.soft));
  svg.replaceChildren(...children);
  const about = `Colour: from ${percent(scale.low, model.whole)} to ${percent(scale.high, model.whole)} of the score`;
  set(svg, { width, height: LEGEND_HIGH, viewBox: `0 0 ${width} ${LEGEND_HIGH}`, role: "img", "aria-label": about });
  set(svg, { "data-low": scale.low, "data-high": scale.high });
}

/** From the strongest down, the values whose words have room beside each other and beside the least. */
function apart(values, scale, bar) {
  let free = Infinity;
  return values.reverse().filter((value) => {
    const x = bar * scale.strength(value);
    const fits = x < free && x > 58;
    if (fits) free = x - 50;
    return fits;
  });
}

/** A share in the fewest digits: ticks are round numbers. */
const tickWords = (value, whole) => `${value < 0 ? "−" : ""}${Number(Math.abs((100 * value) / whole).toPrecision(2))} %`;

const label = (text, x, y, anchor, fill) =>
  node("svg:text", { x, y, "text-anchor": anchor, "font-size": 11.5, fill }, text);

// @ts-check
// The texts above and below the figure: title, summary, legend of colours, origin.

import { accountDigits } from "./breakdown.js";
import { node } from "./dom.js";
import { measureName, nounOf, formatNumber } from "./words.js";

/** The summary of a payload without one: the score. */
const scoreWords = (data) =>
  `${formatNumber(data.account.score, accountDigits(data.account))} ${measureName(data)}: this is what brings it about.`;

/** How to read the figure. */
export function leadParts(data, safe) {
  const noun = nounOf(data);
  const colour = (sign, word) => node("span", { class: `sign ${sign}` }, word);
  return [
    data.findings?.length
      ? `A finding joins neighbouring ${noun}s of A to neighbouring ${noun}s of B, as one; the wider its ribbon, the more of the score. `
      : `Every arc joins a ${noun} of A to a ${noun} of B. `,
    `Point at a ${noun} and its partners light up on the other side. `,
    colour("positive", safe ? "Orange" : "Red"),
    data.distance ? " raises the model’s distance, " : " raises the model’s similarity score, ",
    colour("negative", safe ? "hatched or dashed blue" : "blue"),
    data.distance ? " lowers it and so makes the two alike; " : " lowers it; ",
    "together with what belongs to no pair it adds up to exactly that score. ",
    "It is what the model compared, not what a person would.",
  ];
}

export function buildHeader({ data }, { title, summary, differs, facts, controls }) {
  const spaced = (text) => text.replaceAll(" %", "\u00a0%");
  title.textContent = data.title;
  const { verdict = "" } = data;
  const words = data.summary ?? scoreWords(data);
  // the verdict stands out, the rest follows it
  if (verdict && words.startsWith(verdict)) summary.replaceChildren(node("strong", {}, spaced(verdict)), spaced(words.slice(verdict.length)));
  else summary.textContent = spaced(words);
  const inWords = data.differs_most && data.a.names && data.b.names; // the differences of images are drawn
  differs.textContent = inWords ? spaced(`Differs most: ${data.differs_most}.`) : "";
  differs.hidden = !inWords;
  for (const [key, value] of data.facts) facts.append(node("div", {}, node("dt", {}, key), node("dd", {}, value)));
  const { style } = controls.elements;
  for (const name of Object.keys(data.styles)) style.append(node("option", { value: name }, name.replace("_", " ")));
  style.value = data.style;
}

// The words above the picture, and how the explanation was made below it.

import { node } from "./dom.js";
import { decimals, isDistance, measureName, nounOf, plain } from "./words.js";

/** What is seen, and what it means. */
export function leadParts(data, safe) {
  const noun = nounOf(data);
  const colour = (sign, word) => node("span", { class: `sign ${sign}` }, word);
  return [
    `Every arc joins a ${noun} of A to a ${noun} of B; point at a ${noun} and its partners light up on the other side. `,
    colour("positive", safe ? "Orange" : "Red"),
    isDistance(data) ? " pairs raise the model’s distance, " : " pairs raise the model’s similarity score, ",
    colour("negative", safe ? "dashed blue" : "blue"),
    isDistance(data) ? " ones lower it and so make the two alike; " : " ones lower it; ",
    "together with what belongs to no pair they add up to exactly that score: ",
    "this is what the model compared, not what a person would.",
  ];
}

export function buildHeader({ data }, { title, lead, total, facts, controls }) {
  title.textContent = data.title;
  lead.replaceChildren(...leadParts(data, data.palette === "safe"));
  const score = plain(data.account.score, decimals(Object.values(data.account)));
  total.replaceChildren(node("span", {}, score), node("small", {}, measureName(data)));
  for (const [key, value] of data.facts) facts.append(node("div", {}, node("dt", {}, key), node("dd", {}, value)));
  const { style } = controls.elements;
  for (const name of Object.keys(data.styles)) style.append(node("option", { value: name }, name.replace("_", " ")));
  style.value = data.style;
}

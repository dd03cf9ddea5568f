// @ts-check
// The texts above and below the figure: title, verdict, what carries it and what differs with crops, origin.

import { breakdownDigits } from "./breakdown.js";
import { node } from "./dom.js";
import { differenceChoice, makeButton } from "./findings.js";
import { buildTally } from "./tally.js";
import { thumb } from "./thumbnails.js";
import { areTables, capital, measureName, nameOf, nounOf, formatNumber, ofScore, percent } from "./words.js";

const CROP = [60, 46]; // pixels of a crop inside a sentence
const NAMED_DIFFERENCES = 3;
const ONCE = { type: "button", tabindex: -1 }; // the keyboard reaches the same matches as cards

/** The summary of a payload without one: the score. */
const scoreWords = (data) =>
  `${formatNumber(data.breakdown.score, breakdownDigits(data.breakdown))} ${measureName(data)}: this is what brings it about.`;

/** How to read the figure. */
export function leadParts(data, safe) {
  const noun = nounOf(data);
  const colour = (sign, word) => node("span", { class: `sign ${sign}` }, word);
  return [
    data.findings?.length
      ? `A match joins ${noun}s of A to ${noun}s of B, as one; the wider its ribbon, the more of the score. `
      : `Every arc joins a ${noun} of A to a ${noun} of B. `,
    `Point at a match and its ${noun}s light up on both sides; click it, and point at a single ${noun} in it. `,
    colour("positive", safe ? "Orange" : "Red"),
    data.distance ? " raises the model’s distance, " : " raises the model’s similarity score, ",
    colour("negative", safe ? "hatched or dashed blue" : "blue"),
    data.distance ? " lowers it and so makes the two alike; " : " lowers it; ",
    "together with what belongs to no pair it adds up to exactly that score. ",
    "It is what the model compared, not what a person would.",
  ];
}

const spaced = (text) => text.replaceAll(" %", "\u00a0%");

export function buildHeader(model, dom) {
  const { data } = model;
  const { title, summary, warned, facts, controls } = dom;
  title.textContent = data.title;
  const sentence = data.verdict || (data.summary ?? scoreWords(data));
  summary.replaceChildren(data.verdict ? node("strong", {}, spaced(sentence)) : spaced(sentence));
  warned.textContent = spaced((data.warnings ?? []).join(" "));
  warned.hidden = !data.warnings?.length;
  buildTally(model, dom);
  for (const [key, value] of data.facts) facts.append(node("div", {}, node("dt", {}, key), node("dd", {}, value)));
  const { style } = controls.elements;
  for (const name of Object.keys(data.styles)) style.append(node("option", { value: name }, name.replace("_", " ")));
  style.value = data.style;
}

/** Items of a sentence: 'x, y and z' between elements. */
const joinItems = (items) => items.flatMap((item, k) => [k ? (k === items.length - 1 ? " and " : ", ") : " ", item]);

/** A match inside a sentence: its two crops or quotes, and its share. */
function matchItem(app, one) {
  const { data, whole } = app.model;
  const [a, b] = ["a", "b"].map((side) => thumb(app, side, one[side], CROP, 0.25, one.best[side]));
  const label = `Match ${one.k + 1}: ${["a", "b"].map((side) => nameOf(data, side, one[side])).join(" with ")}, ${ofScore(one.relevance, app.model)}`;
  if (areTables(data)) {
    const digits = node("span", { class: "chip" }, one.label);
    return makeButton(app, node("button", { ...ONCE, "aria-label": label }, digits, node("b", {}, percent(one.relevance, whole))), {
      finding: one.k,
    });
  }
  const joint = a.className === "chip" && b.className === "chip" ? " with " : "↔";
  const el = node("button", { ...ONCE, "aria-label": label }, a, node("span", {}, joint), b, node("b", {}, percent(one.relevance, whole)));
  return makeButton(app, el, { finding: one.k });
}

/** A difference inside a sentence: its crop or quote, its input, and its share of the squared distance. */
function differenceItem(app, one) {
  const { data } = app.model;
  const label = `Difference ${one.k + 1}: ${capital(nameOf(data, one.side, one.regions))}, ${percent(one.share, 1)} of the squared distance`;
  const crop = areTables(data) ? node("span", { class: "chip" }, one.label) : thumb(app, one.side, one.regions, CROP, 0.25);
  const where = node("span", {}, `of ${one.side.toUpperCase()}`);
  const el = node("button", { ...ONCE, "aria-label": label }, crop, where, node("b", {}, percent(one.share, 1)));
  return makeButton(app, el, differenceChoice(one));
}

/** The two sentences with crops: what carries the score, and what differs most. */
export function listLead(app) {
  const { data, findings, differences } = app.model;
  const { carried, differs } = app.dom;
  const { lead = "", named = [], text = "" } = data.matches_text ?? {};
  const items = named.filter((k) => findings[k]).map((k) => matchItem(app, findings[k]));
  if (items.length) carried.replaceChildren(lead, ...joinItems(items), ".");
  else carried.textContent = spaced(text);
  carried.hidden = !items.length && !text;
  const most = differences.slice(0, NAMED_DIFFERENCES).map((one) => differenceItem(app, one));
  if (most.length) differs.replaceChildren(data.differs_lead, ...joinItems(most), ".");
  else differs.textContent = data.differs_most ? spaced(`${data.differs_lead} ${data.differs_most}.`) : "";
  differs.hidden = !differs.textContent;
}

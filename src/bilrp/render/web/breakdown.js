// @ts-check
// The score breakdown: a waterfall chart whose last step is the score, and a row for the selection.

import { node } from "./dom.js";
import { decimals, nounOf, percent, formatSigned } from "./words.js";

const TERMS = [
  ["positive", "pairs that raise it"],
  ["negative", "pairs that lower it"],
  ["special_tokens", "pairs with special tokens"],
  ["self_terms_a", "A with itself"],
  ["self_terms_b", "B with itself"],
  ["reference_terms", "either against the reference"],
  ["reference_score", "reference against reference"],
  ["shared", "shared by any two"],
  ["rest", "belongs to none of these"],
  ["unattributed", "belongs to no pair"],
  ["score", "score"],
];

/** The rows of a breakdown: the unattributed part as one row, or split by the reference inputs. */
export const breakdownRows = (breakdown) =>
  TERMS.filter(([name]) => name in breakdown && !(name === "unattributed" && "rest" in breakdown));

/** [name, label, from, to, value] of each step down to the score. */
function waterfall(breakdown) {
  let reached = 0;
  return breakdownRows(breakdown).map(([name, label]) => {
    const from = name === "score" ? 0 : reached;
    reached = name === "score" ? breakdown.score : reached + breakdown[name];
    return [name, label, from, reached, breakdown[name]];
  });
}

/** Number of decimals for all values of a breakdown. */
export const breakdownDigits = (breakdown) => decimals([0, ...waterfall(breakdown).map((step) => step[3])]);

/** Fill the table; returns a function that shows the value of the selection (null: nothing selected). */
export function buildBreakdown({ data, whole }, table, explained) {
  const steps = waterfall(data.breakdown);
  const ends = [0, ...steps.map((step) => step[3])];
  const [low, span] = [Math.min(...ends), Math.max(...ends) - Math.min(...ends) || 1];
  const digits = breakdownDigits(data.breakdown);
  const at = (v) => (100 * (v - low)) / span;
  const addRow = (name, label) => {
    const bar = node("svg:rect", { y: 0, height: 1 });
    const chart = node("svg:svg", { viewBox: "0 0 100 1", preserveAspectRatio: "none", "aria-hidden": "true" }, bar);
    const [number, share] = ["number", "share"].map((kind) => node("td", { class: kind }));
    const row = node("tr", { class: name }, node("th", { scope: "row" }, label), node("td", { class: "bar" }, chart));
    row.append(number, share);
    table.tBodies[0].append(row);
    return (from, to, value) => {
      bar.setAttribute("x", Math.min(at(from), at(to)));
      bar.setAttribute("width", Math.abs(at(to) - at(from)));
      number.textContent = value == null ? "—" : formatSigned(value, digits);
      number.dataset.value = value ?? "";
      share.textContent = value == null || !whole ? "" : percent(value, whole);
      row.classList.toggle("none", value == null);
    };
  };
  for (const [name, label, from, to, value] of steps) addRow(name, label)(from, to, value);
  explained.textContent = breakdownWords(data, whole);
  const chosen = addRow("chosen", "chosen");
  chosen(0, 0, null);
  return (value) => chosen(0, value ?? 0, value);
}

/** One sentence: how much of the score the pairs explain. */
function breakdownWords(data, whole) {
  const { unattributed, score, special_tokens: tokens = 0, shared = 0 } = data.breakdown;
  const special = tokens ? `, ${percent(tokens, whole)} by pairs with a special token` : "";
  const source = "rest" in data.breakdown ? "what the reference has in common, which belongs" : "biases and other constants that belong";
  const explained = score - shared - unattributed - tokens;
  if ("shared" in data.breakdown)
    return `Of what is specific to these two ${percent(explained, whole)} is explained by ${nounOf(data)}s${special}.`;
  return `${percent(explained, whole)} of the score is explained by ${nounOf(data)}s${special}; ${percent(unattributed, whole)} comes from ${source} to none.`;
}

// @ts-check
// What adds up to the score as one bar with one sentence: terms that raise it from the left, terms that lower it back to it.

import { node, set } from "./dom.js";

const RAISED = { y: 0, height: 14 };
const LOWERED = { y: 15, height: 6 };
const BAR_HIGH = 26;
// the terms of the breakdown by the kind of their clause; what belongs to a reference is unattributed
const KINDS = {
  positive: ["positive", "self_terms_a", "self_terms_b"],
  negative: ["negative"],
  special_tokens: ["special_tokens"],
  shared: ["shared"],
  unattributed: ["unattributed"],
};

/** [{kind, from, to}] in units of the score: raising terms from 0 on, lowering ones back from their end. */
export function tallySegments(breakdown) {
  const terms = Object.entries(KINDS).map(([kind, names]) => [kind, names.reduce((sum, name) => sum + (breakdown[name] ?? 0), 0)]);
  const segments = [];
  let at = 0;
  for (const sign of [1, -1])
    for (const [kind, value] of terms) {
      if (value * sign <= 0) continue;
      segments.push({ kind, from: at, to: at + value });
      at += value;
    }
  return segments;
}

/** Fill the bar and its sentence. */
export function buildTally({ data }, { tally }) {
  const clauses = data.breakdown_text?.clauses ?? [];
  tally.hidden = !clauses.length;
  if (tally.hidden) return;
  const [svg, words] = tally.children;
  const segments = tallySegments(data.breakdown);
  const ends = [0, data.breakdown.score, ...segments.flatMap(({ from, to }) => [from, to])];
  const [low, span] = [Math.min(...ends), Math.max(...ends) - Math.min(...ends) || 1];
  const at = (value) => (1000 * (value - low)) / span;
  const bars = segments.map(({ kind, from, to }) =>
    node("svg:rect", { class: kind, x: at(Math.min(from, to)), width: Math.abs(at(to) - at(from)), ...(to > from ? RAISED : LOWERED) }),
  );
  const mark = node("svg:rect", {
    class: "score",
    x: Math.min(Math.max(at(data.breakdown.score) - 1.5, 0), 997),
    width: 3,
    y: 0,
    height: BAR_HIGH - 4,
  });
  set(svg, { viewBox: `0 0 1000 ${BAR_HIGH}`, preserveAspectRatio: "none" });
  svg.replaceChildren(...bars, mark);
  const parts = clauses.flatMap(([kind, text], k) => [
    k ? ", " : "",
    kind === "none" ? "" : node("i", { class: `swatch ${kind}` }),
    text.replaceAll(" %", "\u00a0%"),
  ]);
  words.replaceChildren(data.breakdown_text.lead, ...parts.filter((part) => part !== ""), ".", data.checked ? ` ${data.checked}` : "");
}

// @ts-check
// The list of the strongest pairs, or of the partners of the pinned selection.

import { onlySigns, OTHER, spread, strongest } from "./data.js";
import { node } from "./dom.js";
import { listFindings, makeButton } from "./findings.js";
import { listLead } from "./header.js";
import { partnersOf } from "./scene.js";
import { thumb } from "./thumbnails.js";
import { capital, nameOf, ofScore, percent } from "./words.js";

const LISTED = 12;
const CANDIDATES = 600; // of which neighbours of stronger pairs are left out

/** The pairs to list. */
function matchesOf(app) {
  const { model, state } = app;
  if (state.listed) {
    const values = onlySigns(partnersOf(app, state.listed), state.shown);
    return strongest(values, LISTED).map((partner) => ({ ...state.listed, partner }));
  }
  const pairs = strongest(onlySigns(model.relevance, state.shown), CANDIDATES).map((pair) => [
    Math.floor(pair / model.columns),
    pair % model.columns,
  ]);
  const { a, b } = app.layout;
  return spread(pairs, a.shape, b.shape, LISTED).map(([i, j]) => ({ side: "a", set: [i], partner: j }));
}

function entryOf(app, match) {
  const { data, whole } = app.model;
  const value = partnersOf(app, match)[match.partner];
  const sets = { [match.side]: match.set, [OTHER[match.side]]: [match.partner] };
  const names = ["a", "b"].map((side) => nameOf(data, side, sets[side])).join(" with ");
  const el = node(
    "button",
    {
      type: "button",
      class: value > 0 ? "positive" : "negative",
      "aria-label": `${capital(names)}: ${ofScore(value, app.model)}`,
    },
    ...["a", "b"].map((side) => thumb(app, side, sets[side], [60, 60], 1.6)),
    node("span", { class: "share" }, percent(value, whole)),
  );
  return makeButton(app, el, match);
}

/** Rebuild both lists: the findings, and below them the pairs. */
export function listAll(app) {
  app.dom.entries = [];
  listLead(app);
  listFindings(app);
  app.dom.listed.textContent = app.state.listed ? "Partners of what is pinned" : "Strongest pairs";
  app.dom.matches.replaceChildren(...matchesOf(app).map((match) => node("li", {}, entryOf(app, match))));
}

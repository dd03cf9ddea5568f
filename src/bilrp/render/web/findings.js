// @ts-check
// The cards of matches and differences: number, crops or words, share. Hovering over one shows it alone, with its pairs.

import { node } from "./dom.js";
import { change } from "./paint.js";
import { shownFindings } from "./scene.js";
import { thumb } from "./thumbnails.js";
import { areTables, capital, nameOf, ofScore, percent, same } from "./words.js";

/** Let a list entry show its selection while hovered, and pin it when clicked. */
export function makeButton(app, el, choice) {
  const show = (on) => () => change(app, { peek: on ? choice : null });
  for (const [event, on] of [
    ["pointerenter", true],
    ["focus", true],
    ["pointerleave", false],
    ["blur", false],
  ])
    el.addEventListener(event, show(on));
  el.addEventListener("click", () => {
    const again = same(app.state.pinned, choice);
    change(app, { pinned: again ? null : choice, peek: again ? null : choice });
  });
  app.dom.entries.push({ el, choice });
  return el;
}

/** The selection of a difference. */
export const differenceChoice = ({ k, side, regions }) => ({ difference: k, side, set: regions });

function entry(app, one) {
  const { data, whole } = app.model;
  const sides = ["a", "b"];
  const share = percent(one.relevance, whole);
  const said = ofScore(one.relevance, app.model);
  const names = sides.map((side) => nameOf(data, side, one[side])).join(" with ");
  const sign = one.relevance > 0 ? "positive" : "negative";
  const el = node(
    "button",
    { type: "button", class: sign, "aria-label": `Match ${one.k + 1}: ${capital(names)}, ${said}` },
    node("span", { class: "pair" }, ...sides.map((side) => thumb(app, side, one[side], [128, 100], 0.5, one.best[side]))),
    node("span", { class: "number" }, `${one.k + 1}`),
    node("span", { class: "share" }, share),
    areTables(data)
      ? node("span", { class: "where" }, one.label)
      : one.unreliable
        ? node("span", { class: "where" }, "unreliable input")
        : "",
  );
  return makeButton(app, el, { finding: one.k });
}

/** A difference: number, its regions, and its share of the squared distance. */
function differenceEntry(app, one) {
  const { data } = app.model;
  const share = percent(one.share, 1);
  const name = capital(nameOf(data, one.side, one.regions));
  const el = node(
    "button",
    { type: "button", class: "negative", "aria-label": `Difference ${one.k + 1}: ${name}, ${share} of the squared distance` },
    node("span", { class: "pair" }, thumb(app, one.side, one.regions, [128, 100], 0.5)),
    node("span", { class: "number" }, `${one.k + 1}`),
    node("span", { class: "share" }, share),
    node("span", { class: "where" }, `in ${one.side.toUpperCase()}`),
  );
  return makeButton(app, el, differenceChoice(one));
}

/** The list below the figure: differences while they are drawn, else findings. */
export function listFindings(app) {
  if (app.state.draw === "differences") {
    app.dom.findings.replaceChildren(...app.model.differences.map((one) => node("li", {}, differenceEntry(app, one))));
    app.dom.findings.hidden = false;
    return;
  }
  const findings = shownFindings(app);
  app.dom.findings.replaceChildren(...findings.map((one) => node("li", {}, entry(app, one))));
  app.dom.findings.hidden = !findings.length;
}

// The list of findings: number, both positions, share. Hovering over one shows it alone, with its pairs.

import { node } from "./dom.js";
import { change } from "./paint.js";
import { shownFindings } from "./scene.js";
import { thumb } from "./thumbnails.js";
import { capital, nameOf, percent, same, shortName } from "./words.js";

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

/** 'left ↔ middle'; empty for texts, whose words are shown. */
function whereWords(data, one) {
  const places = ["a", "b"].filter((side) => !data[side].names).map((side) => shortName(data, side, one[side]));
  return places[0] === places[1] ? places[0] : places.join(" ↔ ");
}

function entry(app, one) {
  const { data, whole } = app.model;
  const sides = ["a", "b"];
  const share = percent(one.relevance, whole);
  const names = sides.map((side) => nameOf(data, side, one[side])).join(" with ");
  const sign = one.relevance > 0 ? "positive" : "negative";
  const el = node(
    "button",
    { type: "button", class: sign, "aria-label": `Finding ${one.k + 1}: ${capital(names)}, ${share} of the score` },
    node("span", { class: "pair" }, ...sides.map((side) => thumb(app, side, one[side], [128, 100], 0.5, one.best[side]))),
    node("span", { class: "number" }, `${one.k + 1}`),
    node("span", { class: "share" }, share),
    node("span", { class: "where" }, one.label ?? whereWords(data, one)),
  );
  return makeButton(app, el, { finding: one.k });
}

export function listFindings(app) {
  const findings = shownFindings(app);
  app.dom.found.replaceChildren(...findings.map((one) => node("li", {}, entry(app, one))));
  app.dom.found.hidden = !findings.length;
}

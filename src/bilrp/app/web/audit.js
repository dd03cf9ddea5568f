// @ts-check
// The audit: where in images, or in which words, the similarity of near neighbours is, and possible shortcuts.

import { node } from "../page/dom.js";
import { counted, roundPercent } from "../page/words.js";
import * as address from "./address.js";
import { ask, progress } from "./api.js";

/** A heat map of 16 × 16 cells, darker for larger values; cells of the mask are marked. */
function places(values, mask, label) {
  const high = values.length;
  const wide = values[0].length;
  const most = Math.max(...values.flat()) || 1;
  const cells = values.flatMap((line, y) =>
    line.map((value, x) =>
      node("svg:rect", {
        x,
        y,
        width: 1.02,
        height: 1.02,
        class: mask?.[y][x] ? "masked" : "",
        "fill-opacity": (0.08 + 0.8 * (value / most)).toFixed(3),
      }),
    ),
  );
  return node("svg:svg", { viewBox: `0 0 ${wide} ${high}`, class: "places", role: "img", "aria-label": label }, ...cells);
}

const examples = (pairs) =>
  node(
    "ul",
    { class: "pairs" },
    ...pairs.slice(0, 6).map(([a, b]) => {
      const thumb = ({ id }) => node("img", { src: address.content(id, "thumbnail"), alt: "", loading: "lazy" });
      return node(
        "li",
        {},
        node("a", { href: address.pair(a.id, b.id), "aria-label": `${a.name} and ${b.name}: open the pair` }, thumb(a), thumb(b)),
      );
    }),
  );

const compared = ({ share, area }, whole = "of the picture") => {
  const bar = (value, name) => {
    const fill = node("i");
    fill.style.width = `${(100 * value) / Math.max(share, area)}%`;
    return node("span", { class: `bar ${name}` }, fill);
  };
  return node(
    "dl",
    { class: "compared" },
    node("dt", {}, "of the relevance"),
    node("dd", {}, bar(share, "share"), roundPercent(share)),
    node("dt", {}, whole),
    node("dd", {}, bar(area, "area"), roundPercent(area)),
  );
};

/** Phrases of texts: suspects with the neighbours that change without them, then everything that carries similarity. */
function textAudit(root, answer) {
  const line = ({ id, name }) => node("a", { class: "line", href: address.item(id) }, name);
  const change = ({ item, before, after }) =>
    node("li", {}, line(item), node("br"), "was nearest to ", line(before), node("br"), "without it: ", line(after));
  const suspects = answer.phrases.filter(({ suspect }) => suspect);
  const listed = suspects.map((one, n) =>
    node(
      "li",
      {},
      node("h3", {}, `“${one.phrase}”`),
      compared(one, "of the words"),
      node("p", {}, `${one.description}.`),
      node("p", {}, node("a", { href: address.to("/repair", { suspect: n + 1 }) }, "Repair it: before and after")),
      node("ul", { class: "changes" }, ...one.changes.slice(0, 3).map(change)),
    ),
  );
  const row = (one) =>
    node(
      "tr",
      {},
      ...[
        one.phrase,
        counted(one.carriers, "text"),
        roundPercent(one.share),
        roundPercent(one.area),
        ...[one.attraction, one.attraction_without].map((value) => (value == null ? "–" : roundPercent(value))),
      ].map((cell) => node("td", {}, cell)),
    );
  const head = ["phrase", "in", "of the relevance", "of the words", "nearest neighbour has it too", "… without it"];
  const table = (heads, rows) =>
    node(
      "table",
      { class: "phrases" },
      node("thead", {}, node("tr", {}, ...heads.map((name) => node("th", {}, name)))),
      node("tbody", {}, ...rows),
    );
  const kinds = answer.kinds.map(({ label, share, area }) =>
    node("tr", {}, ...[label, roundPercent(share), roundPercent(area)].map((cell) => node("td", {}, cell))),
  );
  root.replaceChildren(
    node("h1", {}, "Audit"),
    node("p", { class: "lead" }, `What makes texts similar here? The nearest neighbours of a sample, ${answer.pairs} pairs, word by word.`),
    node(
      "section",
      {},
      node("h2", {}, "What looks like a shortcut"),
      listed.length
        ? node("ol", { class: "findings wordy" }, ...listed)
        : node("p", {}, "No common phrase draws texts together that would not be neighbours without it."),
    ),
    node("section", {}, node("h2", {}, "Phrases that carry similarity"), table(head, answer.phrases.map(row))),
    node(
      "section",
      {},
      node("h2", {}, "By kind of word"),
      table(["kind", "of the relevance", "of the words"], kinds),
      ...answer.traits.map((trait) => node("p", { class: "note" }, trait)),
    ),
  );
}

export async function audit(root, { signal }) {
  const wait = node("p", { class: "wait", role: "status" }, "Looking at near neighbours …");
  root.replaceChildren(node("h1", {}, "Audit"), wait);
  const answer = await ask("/api/audit", {}, { signal, onProgress: (event) => (wait.textContent = progress(event)) });
  if (answer.phrases) return textAudit(root, answer);
  const lead = `The nearest neighbours of a sample, ${answer.pairs} pairs: where does their similarity sit? What has more of the relevance than of the picture may be a shortcut, and so may what many items have in common that are neighbours more often than chance.`;
  const suspects = answer.suspects.map((one, n) =>
    node(
      "li",
      {},
      places(answer.places, one.mask, `Where: ${one.where}`),
      node(
        "div",
        {},
        node("h3", {}, one.where[0].toUpperCase() + one.where.slice(1)),
        compared(one),
        node("p", {}, one.changed == null ? "" : `Without it, ${roundPercent(one.changed)} of the items get another nearest neighbour.`),
        one.attraction == null || one.chance == null
          ? ""
          : node(
              "p",
              {},
              `Of the neighbours of items with it, ${roundPercent(one.attraction)} have it too, ${roundPercent(one.chance)} by chance.`,
            ),
        node("p", {}, node("a", { href: address.to("/repair", { suspect: n + 1 }) }, "Repair it: before and after")),
        examples(one.pairs),
      ),
    ),
  );
  const clusters = answer.clusters.map((one, k) =>
    node(
      "li",
      {},
      places(one.places, null, `Where the similarity of kind ${k + 1} sits`),
      node("div", {}, node("h3", {}, `${counted(one.count, "pair")} whose similarity sits here`), examples(one.pairs)),
    ),
  );
  const none = node("p", {}, "Nothing has more of the relevance than of the picture, or brings items together.");
  root.replaceChildren(
    node("h1", {}, "Audit"),
    node("p", { class: "lead" }, lead),
    node(
      "section",
      {},
      node("h2", {}, "What looks like a shortcut"),
      suspects.length ? node("ol", { class: "findings" }, ...suspects) : none,
    ),
    node("section", {}, node("h2", {}, "Where similarity sits"), node("ol", { class: "findings" }, ...clusters)),
  );
  return undefined;
}

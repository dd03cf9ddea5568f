// @ts-check
// Rows of inputs whose regions are tinted by their contributions, on one scale; and a table of scores of all pairs.

import { node } from "./dom.js";

const SIGN = { 1: "positive", "-1": "negative" };

/** An image with its regions, or a text with its words. */
function picture({ src, size, boxes, text, spans, tints, label }) {
  if (src) {
    const [width, height] = size;
    const image = node("svg:image", { href: src, width, height, preserveAspectRatio: "none" });
    const tinted = boxes.map(([left, top, right, bottom], i) =>
      node("svg:rect", {
        x: left,
        y: top,
        width: right - left,
        height: bottom - top,
        class: SIGN[Math.sign(tints[i])] ?? "",
        "fill-opacity": Math.abs(tints[i]),
      }),
    );
    return node("svg:svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label }, image, ...tinted);
  }
  const letters = Array.from(text ?? "");
  const parts = [];
  let at = 0;
  (spans ?? []).forEach((span, i) => {
    if (!span || span[0] < at) return;
    parts.push(letters.slice(at, span[0]).join(""));
    const word = node("mark", { class: SIGN[Math.sign(tints[i])] ?? "" }, letters.slice(...span).join(""));
    word.style.setProperty("--tint", `${Math.round(100 * Math.abs(tints[i]))}%`);
    parts.push(word);
    at = span[1];
  });
  return node("p", { class: "tinted" }, ...parts, letters.slice(at).join(""));
}

/** The rows and their scale of colours. */
export function buildStrips({ rows, largest, positive, negative, unit }) {
  const figures = (items) =>
    items.map((item) => node("figure", {}, picture(item), node("figcaption", {}, node("b", {}, item.label), node("span", {}, item.note))));
  const sections = rows.map(({ title, items }) =>
    node("div", {}, title ? node("h2", {}, title) : null, node("div", { class: "strip" }, ...figures(items))),
  );
  const scale = node(
    "p",
    { class: "scale" },
    node("span", {}, `−${largest} ${unit}, ${negative}`),
    node("i"),
    node("span", {}, `+${largest}, ${positive}`),
  );
  return node("div", { class: "strips" }, ...sections, scale);
}

/** The table of the scores of all pairs; darker cells are more similar. */
export function buildMatrix({ names, cells, caption }) {
  const head = node("tr", {}, node("td"), ...names.map((name) => node("th", { scope: "col", title: name }, name)));
  const rows = cells.map((row, i) => {
    const tr = node("tr", {}, node("th", { scope: "row", title: names[i] }, names[i]));
    for (const cell of row) {
      const inner = !cell ? "" : cell.pair == null ? cell.text : node("a", { href: `#pair-${cell.pair + 1}` }, cell.text);
      const td = node("td", {}, inner);
      if (cell) td.style.setProperty("--tint", `${Math.round(100 * cell.strength)}%`);
      tr.append(td);
    }
    return tr;
  });
  return node(
    "div",
    { class: "matrix" },
    node("table", {}, node("caption", {}, caption), node("thead", {}, head), node("tbody", {}, ...rows)),
  );
}

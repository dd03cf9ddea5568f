// @ts-check
// The panel beside the network: the parts that several items share, an item with its edges, an edge with its reason.

import { node } from "./dom.js";

const MAX_LISTED = 60;
const MAX_NUMBERS = 80;

/**
 * @param {HTMLElement} root
 * @param {import("./graph.js").GraphData} data
 * @param {(next: import("./graph.js").Selection) => void} choose
 */
export function createPanel(root, data, choose) {
  const back = () => {
    const button = node("button", { type: "button", class: "back" }, "← All");
    button.addEventListener("click", () => choose({ kind: "none" }));
    return button;
  };
  const link = (text, next, note = "") => {
    const button = node("button", { type: "button", class: "row" }, node("b", {}, text), note ? node("span", {}, note) : null);
    button.addEventListener("click", () => choose(next));
    return node("li", {}, button);
  };

  function listParts() {
    const edges = data.edges.slice(0, MAX_LISTED).map(({ a, b, score, reason }, number) => {
      const names = `${data.nodes[a].name} ↔ ${data.nodes[b].name}`;
      return link(names, { kind: "edge", number }, reason?.text ?? `score ${score}`);
    });
    if (!data.parts.length) return [node("h2", {}, "Strongest edges"), node("ol", {}, ...edges)];
    const rows = data.parts.slice(0, MAX_LISTED).map((part, number) => {
      const first = data.time ? `; first in ${describeItem(data, part.carriers[0].node)}` : "";
      const variants = part.variants ? `; ${part.variants} differ` : "";
      return link(`${part.carriers.length} items share ${part.text}`, { kind: "part", number }, `${first}${variants}`.slice(2));
    });
    const more = data.parts.length - rows.length;
    return [node("h2", {}, "Shared parts"), node("ol", {}, ...rows), more > 0 ? node("p", {}, `… and ${more} more`) : null];
  }

  function showPart(number) {
    const part = data.parts[number];
    const rows = part.carriers.map((carrier, n) => {
      const from = carrier.source == null ? (n === 0 && data.time ? "first" : "") : `from ${data.nodes[carrier.source].name}`;
      const equal = carrier.source == null || !carrier.equal ? "" : `${carrier.equal} equal`;
      const changed = (carrier.changed ?? []).map(([a, b]) => `${a} → ${b}`).join(", ");
      const note = [from, equal, changed && `changed ${changed}`].filter(Boolean).join("; ");
      return link(describeItem(data, carrier.node), { kind: "node", number: carrier.node }, note);
    });
    return [back(), node("h2", {}, `${part.carriers.length} items share ${part.text}`), node("ol", { class: "spread" }, ...rows)];
  }

  function showNode(number) {
    const item = data.nodes[number];
    const rows = data.edges
      .map((edge, n) => ({ ...edge, n }))
      .filter(({ a, b }) => a === number || b === number)
      .slice(0, MAX_LISTED)
      .map(({ a, b, n, score, reason }) => {
        const other = describeItem(data, a === number ? b : a);
        return link(other, { kind: "edge", number: n }, reason?.text ?? `score ${score}`);
      });
    return [back(), node("h2", {}, describeItem(data, number)), showItem(item), node("ol", {}, ...rows)];
  }

  function showEdge(number) {
    const { a, b, score, reason } = data.edges[number];
    const first = reason?.parts?.[0];
    const sides = [
      [a, reason?.cropA, first?.boxA, first?.textA],
      [b, reason?.cropB, first?.boxB, first?.textB],
    ].map(([at, crop, box, text]) =>
      node(
        "figure",
        {},
        crop ? node("img", { src: crop, alt: `${data.nodes[at].name}: what is shared` }) : showItem(data.nodes[at], box),
        node("figcaption", {}, describeItem(data, at), text && !first.numbers ? node("span", {}, text) : null),
      ),
    );
    const parts = (reason?.parts ?? []).map((part) => showReasonPart(part));
    const changed = (reason?.changed ?? []).map(({ a: one, b: two, digits }) =>
      node(
        "li",
        {},
        ...markDigits(one, two),
        " / ",
        ...markDigits(two, one),
        digits === 1 ? "" : node("span", {}, " (several digits, or misread)"),
      ),
    );
    return [
      back(),
      node("h2", {}, `${data.nodes[a].name} ↔ ${data.nodes[b].name}`),
      node("p", {}, data.by === "numbers" ? `${score} numbers in common` : `score ${score}`),
      node("div", { class: "pair" }, ...sides),
      reason ? null : node("p", {}, "This edge was not explained: write the page with more reasons (--reasons)."),
      ...parts,
      changed.length ? node("h3", {}, "Numbers that differ") : null,
      changed.length ? node("ul", { class: "changed" }, ...changed) : null,
    ];
  }

  return {
    /** @param {import("./graph.js").Selection} selection */
    show(selection) {
      const show = { part: showPart, node: showNode, edge: showEdge };
      const content = selection.kind === "none" ? listParts() : show[selection.kind](selection.number);
      root.replaceChildren(...content.filter((each) => each != null));
      root.scrollTop = 0;
    },
  };
}

function describeItem(data, number) {
  const { name, time, place } = data.nodes[number];
  const about = [time, place].filter(Boolean).join(", ");
  return about ? `${name} (${about})` : name;
}

/** An item as a picture, with a box around what is shared, or as a text. */
function showItem(item, box = null) {
  if (item.text) return node("blockquote", {}, item.text);
  if (!item.image) return node("p", {}, "");
  const image = node("img", { src: item.image, alt: item.name });
  if (!box) return node("div", { class: "picture" }, image);
  const [left, top, right, bottom] = box.map((value) => `${100 * value}%`);
  const [wide, high] = [box[2] - box[0], box[3] - box[1]].map((value) => `${100 * value}%`);
  const frame = node("svg:rect", { x: left, y: top, width: wide, height: high, "data-right": right, "data-bottom": bottom });
  return node("div", { class: "picture" }, image, node("svg:svg", { "aria-hidden": "true" }, frame));
}

function showReasonPart(part) {
  const share = part.share == null ? "" : `${(100 * part.share).toPrecision(2)} % of the score: `;
  if (!part.numbers) return node("p", { class: "match" }, `${share}${part.textA} ↔ ${part.textB}`);
  const rest = part.numbers.length - MAX_NUMBERS;
  const numbers = part.numbers.slice(0, MAX_NUMBERS).map((number) => node("span", {}, number));
  return node("p", { class: "numbers" }, ...numbers, rest > 0 ? ` and ${rest} more` : "");
}

/** A number with the digits that differ from the other's. */
function markDigits(number, other) {
  if (number.length !== other.length) return [node("mark", {}, number)];
  return [...number].map((digit, n) => (digit === other[n] ? digit : node("mark", {}, digit)));
}

// @ts-check
// The panel next to the network: the parts that several items share, an item with its edges, an edge with its reason.

import { node } from "./dom.js";

const MAX_LISTED = 60;
const MAX_ROWS = 40;
const MAX_COLUMNS = 30;

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
      return link(describeItem(data, carrier.node), findEdge(carrier) ?? { kind: "node", number: carrier.node }, note);
    });
    return [back(), node("h2", {}, `${part.carriers.length} items share ${part.text}`), node("ol", { class: "spread" }, ...rows)];
  }

  /** The edge from the likely source to a carrier: it has what was changed. */
  function findEdge({ node: copy, source }) {
    const number = data.edges.findIndex(({ a, b }) => (a === source && b === copy) || (a === copy && b === source));
    return number < 0 ? null : { kind: "edge", number };
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
    const parts = (reason?.parts ?? []).flatMap((part, n) => showPartOfReason(data, a, b, part, n));
    const changed = (reason?.changed ?? []).map((each) => showChange(data, a, b, each));
    return [
      back(),
      node("h2", {}, `${data.nodes[a].name} ↔ ${data.nodes[b].name}`),
      node("p", {}, data.by === "numbers" ? `${score} numbers in common` : `score ${score}`),
      ...(changed.length ? [node("h3", {}, "Numbers that differ"), node("ul", { class: "changed" }, ...changed)] : []),
      ...(data.by === "numbers" ? [node("h3", {}, "On both pages")] : []),
      ...(parts.length ? parts : [showSides(data, a, b)]),
      reason ? null : node("p", {}, "This edge was not explained: write the page with more reasons (--reasons)."),
    ];
  }

  function showItems(numbers) {
    const rows = numbers.slice(0, MAX_LISTED).map((n) => link(describeItem(data, n), { kind: "node", number: n }));
    const title = numbers.length ? `${numbers.length} items` : "No item has this in its name";
    const more = numbers.length - rows.length;
    return [back(), node("h2", {}, title), node("ol", {}, ...rows), more > 0 ? node("p", {}, `… and ${more} more`) : null];
  }

  return {
    /** @param {import("./graph.js").Selection} selection */
    show(selection) {
      const show = { part: showPart, node: showNode, edge: showEdge };
      const content =
        selection.kind === "none"
          ? listParts()
          : selection.kind === "items"
            ? showItems(selection.numbers)
            : show[selection.kind](selection.number);
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

/** Whether an item is a text that is shown under its own words. */
const isItsText = ({ name, text }) => text !== undefined && text.startsWith(name);

/** Both sides of a part of an edge: crops if there are any, else the items, with a box around it. */
function showSides(data, a, b, part = null) {
  const sides = [
    [a, part?.cropA, part?.boxA, part?.textA],
    [b, part?.cropB, part?.boxB, part?.textB],
  ].map(([at, crop, box, text]) =>
    node(
      "figure",
      {},
      node("figcaption", {}, isItsText(data.nodes[at]) ? "" : describeItem(data, at), text && !part.rows ? node("span", {}, text) : null),
      crop ? node("img", { src: crop, alt: `${data.nodes[at].name}: what is shared` }) : showItem(data.nodes[at], box),
    ),
  );
  return node("div", { class: part?.rows ? "pair tall" : "pair" }, ...sides);
}

/** The n-th part of an edge: its sides, and what it says. */
function showPartOfReason(data, a, b, part, n) {
  const share = part.share == null ? "" : `${(100 * part.share).toPrecision(2)} % of the score: `;
  const words = part.rows ? showBlock(part) : node("p", { class: "match" }, `${share}${part.textA} ↔ ${part.textB}`);
  return n === 0 || part.cropA ? [showSides(data, a, b, part), words] : [words];
}

/** The numbers of a block as they stand on the first page; where they differ, both. */
function showBlock({ rows, reliability }) {
  const cell = (one) =>
    Array.isArray(one)
      ? node("td", { class: "differs" }, ...markDigits(one[0], one[1]), node("br"), ...markDigits(one[1], one[0]))
      : node("td", {}, one);
  const lines = rows.slice(0, MAX_ROWS).map((row) => node("tr", {}, ...row.slice(0, MAX_COLUMNS).map(cell)));
  const isCut = rows.length > MAX_ROWS || rows[0].length > MAX_COLUMNS;
  const trust = reliability == null ? null : node("p", {}, `Reliability of the reading: ${reliability.toFixed(2)} of 1.`);
  return node("div", { class: "numbers" }, node("table", {}, ...lines), isCut ? node("p", {}, "… and more") : null, trust);
}

/** A number that differs, as it stands on both pages. */
function showChange(data, a, b, { a: one, b: two, digits, isUnreliable, cropA, cropB }) {
  const side = (at, crop, text, other) =>
    node(
      "figure",
      {},
      crop ? node("img", { src: crop, alt: "" }) : null,
      node("b", {}, ...markDigits(text, other)),
      node("span", {}, describeItem(data, at)),
    );
  const reasons = [digits === 1 ? "" : "several digits differ", isUnreliable ? "the network is not sure of its digits" : ""];
  const doubt = reasons.filter(Boolean).join(" and ");
  const note = doubt ? node("span", {}, `Perhaps misread: ${doubt}.`) : null;
  return node("li", {}, node("div", { class: "pair" }, side(a, cropA, one, two), side(b, cropB, two, one)), note);
}

/** A number with the digits that differ from the other's. */
function markDigits(number, other) {
  if (number.length !== other.length) return [node("mark", {}, number)];
  return [...number].map((digit, n) => (digit === other[n] ? digit : node("mark", {}, digit)));
}

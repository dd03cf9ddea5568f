// @ts-check
// graph(root, payload): items as nodes, what they share as edges; a click on an edge shows its reason, and a list shows
// the parts that several items share, with the order in which they have them.

import { node } from "./dom.js";
import { drawNetwork } from "./graph_canvas.js";
import { createPanel } from "./graph_panel.js";
import { sortTimes } from "./graph_times.js";

/**
 * @typedef {{ name: string, x: number, y: number, time: string, place: string, group: string, image?: string, text?: string }} GraphNode
 * @typedef {{ a: number, b: number, score: number, reason?: any }} GraphEdge
 * @typedef {{ by: string, title: string, lonely: number, time: string, place: string, nodes: GraphNode[],
 *   edges: GraphEdge[], parts: any[], sources: { source: number, copy: number, certain: boolean }[] }} GraphData
 * @typedef {{ kind: "none" } | { kind: "node" | "edge" | "part", number: number } | { kind: "items", numbers: number[] }} Selection
 */

/**
 * @param {HTMLElement} root
 * @param {GraphData} data
 */
export function graph(root, data) {
  /** @type {Selection} */
  let selection = { kind: "none" };
  const canvas = node("canvas", { tabindex: "0", role: "img", "aria-label": describeNetwork(data) });
  const search = node("input", { type: "search", placeholder: "Find an item", "aria-label": "Find an item" });
  const layout = node("button", { type: "button", "aria-pressed": "false" }, `By ${data.time || "time"}`);
  const fit = node("button", { type: "button" }, "Show all");
  const tools = node("div", { class: "tools" }, search, data.time ? layout : null, fit);
  const stage = node("div", { class: "stage" }, tools, explainMarks(data), canvas);
  const aside = node("aside", { "aria-live": "polite", "aria-label": "What was chosen" });
  root.append(
    node("header", {}, node("h1", {}, data.title), node("p", {}, describeNetwork(data))),
    node("div", { class: "columns" }, stage, aside),
  );
  const view = drawNetwork(canvas, data, (next) => choose(next, false));
  const panel = createPanel(aside, data, (next) => choose(next, true));
  /**
   * @param {Selection} next
   * @param {boolean} reveal move the network so that what was chosen can be seen
   */
  function choose(next, reveal) {
    selection = next;
    view.select(next, reveal);
    panel.show(next);
  }
  fit.addEventListener("click", () => view.fit());
  layout.addEventListener("click", () => {
    const on = layout.getAttribute("aria-pressed") !== "true";
    layout.setAttribute("aria-pressed", String(on));
    view.arrange(on);
  });
  search.addEventListener("input", () => {
    const words = search.value.trim().toLowerCase();
    const numbers = data.nodes.map((_, n) => n).filter((n) => data.nodes[n].name.toLowerCase().includes(words));
    if (!words) choose({ kind: "none" }, true);
    else if (numbers.length === 1) choose({ kind: "node", number: numbers[0] }, true);
    else choose({ kind: "items", numbers }, true);
  });
  root.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && selection.kind !== "none") choose({ kind: "none" }, true);
  });
  panel.show(selection);
  root.dataset.ready = "true";
}

/** @param {GraphData} data */
function describeNetwork(data) {
  const isTables = data.by === "numbers";
  const lines = data.edges.length.toLocaleString("en");
  const what = isTables ? "Every line is a block of numbers on both pages" : "Every line joins two items that are alike";
  const rest = data.lonely ? `; ${data.lonely.toLocaleString("en")} more are like no other` : "";
  const count = `${data.nodes.length.toLocaleString("en")} ${isTables ? "pages" : "items"}, ${lines} lines${rest}`;
  return `${what}: click on it to see why. ${count}.`;
}

/** What colours, arrows and dashes mean; null without times. */
function explainMarks(data) {
  const times = sortTimes(data);
  if (!times.length) return null;
  const dots = [0, 1, 2, 3, 4].map((age) => node("i", { class: `age${age}` }));
  const ages = node("span", {}, times[0], ...dots, times[times.length - 1]);
  const dashes = data.by === "numbers" ? node("span", {}, "┄ in common, not copied directly") : null;
  return node("p", { class: "key" }, ages, data.sources.length ? node("span", {}, "→ from the likely source to its copy") : null, dashes);
}

// @ts-check
// graph(root, payload): items as nodes, what they share as edges; a click on an edge shows its reason, and a list shows
// the parts that several items share, with the order in which they have them.

import { node } from "./dom.js";
import { drawNetwork } from "./graph_canvas.js";
import { createPanel } from "./graph_panel.js";

/**
 * @typedef {{ name: string, x: number, y: number, time: string, place: string, group: string, image?: string, text?: string }} GraphNode
 * @typedef {{ a: number, b: number, score: number, reason?: any }} GraphEdge
 * @typedef {{ by: string, title: string, lonely: number, time: string, place: string, nodes: GraphNode[],
 *   edges: GraphEdge[], parts: any[], sources: { source: number, copy: number, certain: boolean }[] }} GraphData
 * @typedef {{ kind: "none" } | { kind: "node" | "edge" | "part", number: number }} Selection
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
  const stage = node("div", { class: "stage" }, tools, canvas);
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
    const number = words ? data.nodes.findIndex((each) => each.name.toLowerCase().includes(words)) : -1;
    choose(number < 0 ? { kind: "none" } : { kind: "node", number }, true);
  });
  root.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && selection.kind !== "none") choose({ kind: "none" }, true);
  });
  panel.show(selection);
  root.dataset.ready = "true";
}

/** @param {GraphData} data */
function describeNetwork(data) {
  const count = data.nodes.length.toLocaleString("en");
  const joined = `${count} items are joined by ${data.edges.length.toLocaleString("en")} edges`;
  const what = data.by === "numbers" ? "blocks of numbers on both pages" : "similarity of their embeddings";
  const rest = data.lonely ? `; ${data.lonely.toLocaleString("en")} more are like no other` : "";
  return `${joined} (${what})${rest}. Click on an edge for its reason.`;
}

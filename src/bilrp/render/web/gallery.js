// @ts-check
// gallery(root, { title, lead, columns, chapters, strips, matrix }): several explanations on one page, each drawn when it
// scrolls into view; above them rows of tinted inputs, and the scores of all pairs.

import { node } from "./dom.js";
import { mount } from "./mount.js";
import { buildMatrix, buildStrips } from "./strips.js";

const NEAR = "600px"; // drawn this far before it scrolls into view

export function gallery(root, { title, lead, columns, chapters, strips, matrix, palette }) {
  const list = node("ol");
  const views = node("div", { class: columns > 1 ? "views side" : "views" });
  const nav = columns > 1 ? null : node("nav", { "aria-label": "On this page" }, list);
  const above = [matrix ? buildMatrix(matrix) : null, strips ? buildStrips(strips) : null];
  root.dataset.palette = palette ?? "paper";
  root.append(node("header", {}, node("h1", {}, title), lead ? node("p", {}, lead) : null, ...above, nav), views);
  const waiting = new Map();
  const observer = new IntersectionObserver(
    (seen) => {
      for (const { isIntersecting, target } of seen) {
        if (!isIntersecting || !waiting.has(target)) continue;
        mount(target, waiting.get(target)).ready.finally(() => target.classList.add("drawn"));
        waiting.delete(target);
        observer.unobserve(target);
      }
    },
    { rootMargin: NEAR },
  );
  chapters.forEach((payload, number) => {
    const id = `pair-${number + 1}`;
    const words = (payload.summary ?? "").replaceAll(" %", "\u00a0%");
    list.append(node("li", {}, node("a", { href: `#${id}` }, payload.title), " ", node("span", {}, words)));
    const place = node("section", { id, "aria-label": payload.title });
    waiting.set(place, payload);
    views.append(place);
    observer.observe(place);
  });
}

// @ts-check
// gallery(root, { title, lead, columns, chapters }): several explanations on one page, each drawn when it scrolls into view.

import { node } from "./dom.js";
import { mount } from "./mount.js";

const NEAR = "600px"; // drawn this far before it scrolls into view

export function gallery(root, { title, lead, columns, chapters }) {
  const list = node("ol");
  const views = node("div", { class: columns > 1 ? "views side" : "views" });
  const nav = columns > 1 ? null : node("nav", { "aria-label": "On this page" }, list);
  root.append(node("header", {}, node("h1", {}, title), lead ? node("p", {}, lead) : null, nav), views);
  const waiting = new Map();
  const observer = new IntersectionObserver((seen) => {
    for (const { isIntersecting, target } of seen) {
      if (!isIntersecting || !waiting.has(target)) continue;
      mount(target, waiting.get(target)).ready.finally(() => target.classList.add("drawn"));
      waiting.delete(target);
      observer.unobserve(target);
    }
  }, { rootMargin: NEAR });
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

// @ts-check
// The collection as a grid of thumbnails or lines of text; only visible rows are in the document.

import { node, set } from "../page/dom.js";
import { counted } from "../page/words.js";
import * as address from "./address.js";
import { createPages } from "./api.js";
import { conditions, filterControls } from "./filters.js";

const PAGE = 100; // items per request
const SPARE = 2; // rows above and below the visible ones
const ROW = { image: 176, text: 64 };
const LEAST = { image: 150, text: 320 }; // minimum width of a cell in pixels

const cell = ({ id, name, group }, kind, number, total) => {
  const shown =
    kind === "image"
      ? [node("img", { src: address.content(id, "thumbnail"), alt: "", decoding: "async" }), node("span", { class: "name" }, name)]
      : [node("span", { class: "line" }, name)];
  const link = node("a", { href: address.item(id), tabindex: -1, title: group ? `${name} · ${group}` : name }, ...shown);
  return node("li", { "aria-setsize": total, "aria-posinset": number + 1 }, link);
};

const pagesOf = (said, signal) => createPages((page) => address.to("/api/items", { ...said, offset: page * PAGE, limit: PAGE }), signal);

function controls(about, said) {
  const groups = about.groups.map(({ name, count }) => node("option", { value: name }, `${name || "no group"} (${count})`));
  const choose = node("select", { name: "group", "aria-label": "Group" }, node("option", { value: "" }, "all groups"), ...groups);
  choose.value = said.group ?? "";
  const find = node("input", {
    type: "search",
    name: "words",
    placeholder: about.kind === "text" ? "Find in the texts" : "Filter by name",
    "aria-label": about.kind === "text" ? "Find in the texts" : "Filter by name",
    autocomplete: "off",
  });
  find.value = said.words ?? "";
  const more = node("a", { class: "quiet", href: address.group(said.group ?? "") }, "what holds it together");
  more.hidden = !said.group;
  const count = node("p", { class: "count", role: "status" });
  return {
    el: node("form", { class: "tools", role: "search" }, find, about.groups.length > 1 ? choose : null, more, count),
    choose,
    find,
    more,
    count,
  };
}

export async function collection(root, { about, said, signal }) {
  const tools = controls(about, said);
  const list = node("ul", { class: `grid ${about.kind}`, "aria-label": "Items" });
  const lead = node(
    "p",
    { class: "lead" },
    `${counted(about.count, "item")} by ${about.encoder}${about.failed ? `; ${about.failed} could not be read` : ""}.`,
  );
  const filters = filterControls(about, conditions(said.filters), (next) =>
    address.go(address.to("/", { ...state.said, filters: next.length ? JSON.stringify(next) : "" })),
  );
  root.replaceChildren(node("h1", {}, about.name), lead, tools.el, filters, list);
  const state = { said: { group: said.group, words: said.words, filters: said.filters }, total: 0, across: 1, at: 0, shown: new Map() };
  let page = pagesOf(state.said, signal);
  let turn = 0;

  const place = () => {
    const width = list.clientWidth;
    state.across = Math.max(1, Math.floor((width + 12) / (LEAST[about.kind] + 12)));
    list.style.height = `${Math.ceil(state.total / state.across) * ROW[about.kind]}px`;
  };

  const draw = async () => {
    const mine = ++turn;
    const row = ROW[about.kind];
    const top = list.getBoundingClientRect().top;
    const first = Math.max(0, Math.floor(-top / row) - SPARE);
    const last = Math.ceil((innerHeight - top) / row) + SPARE;
    const from = first * state.across;
    const until = Math.min(state.total, last * state.across);
    const wanted = new Map();
    for (let n = from - (from % PAGE); n < until; n += PAGE) {
      const { items, offset } = await page(n / PAGE);
      if (mine !== turn || signal.aborted) return;
      items.forEach((one, k) => offset + k >= from && offset + k < until && wanted.set(offset + k, one));
    }
    const focused = document.activeElement?.closest?.(".grid li");
    for (const [n, el] of state.shown) if (!wanted.has(n) && el !== focused) (el.remove(), state.shown.delete(n));
    const before = [...state.shown.keys()];
    for (const [n, one] of wanted) {
      if (state.shown.has(n)) continue;
      const el = cell(one, about.kind, n, state.total);
      const next = before.filter((k) => k > n).sort((x, y) => x - y)[0];
      list.insertBefore(el, next === undefined ? null : state.shown.get(next));
      state.shown.set(n, el);
      before.push(n);
    }
    for (const [n, el] of state.shown) {
      const [x, y] = [n % state.across, Math.floor(n / state.across)];
      Object.assign(el.style, {
        left: `${(100 * x) / state.across}%`,
        top: `${y * row}px`,
        width: `${100 / state.across}%`,
        height: `${row}px`,
      });
      set(el.firstElementChild, { tabindex: n === state.at ? 0 : -1 });
    }
  };

  const start = async () => {
    page = pagesOf(state.said, signal);
    for (const el of state.shown.values()) el.remove();
    state.shown.clear();
    state.at = 0;
    const { total } = await page(0);
    state.total = total;
    tools.count.textContent = total === about.count ? "" : `${counted(total, "item")} of ${about.count.toLocaleString("en")}`;
    place();
    await draw();
  };

  const changed = () => {
    state.said = { ...state.said, group: tools.choose.value || undefined, words: tools.find.value.trim() || undefined };
    tools.more.hidden = !state.said.group;
    tools.more.href = address.group(state.said.group ?? "");
    address.rewrite(address.to("/", state.said), false);
    start();
  };
  tools.find.addEventListener("input", changed);
  tools.choose.addEventListener("change", changed);
  tools.el.addEventListener("submit", (event) => event.preventDefault());

  /** Arrow keys move through all items, also those that are not in the document yet. */
  list.addEventListener("keydown", async (event) => {
    const steps = {
      ArrowLeft: -1,
      ArrowRight: 1,
      ArrowUp: -state.across,
      ArrowDown: state.across,
      Home: -Infinity,
      End: Infinity,
      PageDown: 5 * state.across,
      PageUp: -5 * state.across,
    };
    if (!(event.key in steps) || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    const to = Math.min(Math.max(state.at + steps[event.key], 0), state.total - 1);
    if (Math.abs(steps[event.key]) === state.across && Math.abs(to - state.at) !== state.across) return;
    state.at = to;
    const y = list.getBoundingClientRect().top + Math.floor(to / state.across) * ROW[about.kind];
    if (y < 80 || y + ROW[about.kind] > innerHeight) scrollBy({ top: y - innerHeight / 2, behavior: "instant" });
    await draw();
    state.shown.get(to)?.firstElementChild.focus({ preventScroll: true });
  });
  list.addEventListener("focusin", (event) => {
    const el = event.target.closest("li");
    if (el) state.at = Number(el.getAttribute("aria-posinset")) - 1;
  });

  let asked = false;
  const soon = () => {
    if (asked) return;
    asked = true;
    requestAnimationFrame(() => {
      asked = false;
      draw();
    });
  };
  addEventListener("scroll", soon, { signal, passive: true });
  addEventListener("resize", () => (place(), soon()), { signal });
  await start();
}

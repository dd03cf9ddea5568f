// @ts-check
// The map: every item as a point, by the first two coordinates of its projected embedding; a click or Enter opens it.

import { node } from "../page/dom.js";
import { counted } from "../page/words.js";
import * as address from "./address.js";
import { ask, createPages, fetched, progress } from "./api.js";

const COLOURS = ["#4269d0", "#c2571a", "#3a8a5c", "#a463a4", "#b0354f", "#7f6a3c", "#2f8fa3", "#d9488b"];
const MARKS = ["disc", "square", "triangle"]; // the next shape is used when all colours are
const APART = COLOURS.length * MARKS.length; // number of groups that are drawn differently
export const UNKNOWN = 0xffff; // an item of no such group: grey
const FAR = 24; // largest distance in pixels at which the pointer selects a point

const decode = (text) => new Float32Array(Uint8Array.from(atob(text), (c) => c.charCodeAt(0)).buffer);

/** Return a function that fetches the label of an item by its position, one page at a time. */
function createLabels(signal) {
  const page = createPages((n) => `/api/items?offset=${100 * n}&limit=100`, signal);
  return async (i) => (await page(Math.floor(i / 100))).items[i % 100];
}

export async function atlas(root, { about, signal }) {
  const wait = node("p", { class: "wait", role: "status" }, "Making the map …");
  root.replaceChildren(node("h1", {}, "Map"), wait);
  const map = await ask("/api/map", {}, { signal, onProgress: (event) => (wait.textContent = progress(event)) });
  const clusters = map.clusters ?? []; // a map that an earlier version stored has none
  const places = decode(map.places);
  const count = places.length / 2;
  const label = createLabels(signal);
  const group = await groupsOf(about, count, signal); // before the map is shown, so that it can be used at once
  const canvas = node("canvas", {
    tabindex: 0,
    role: "application",
    "aria-roledescription": "map of items",
    "aria-label": `Map of ${counted(count, "item")}: arrows walk from point to point, Enter opens one`,
  });
  const tip = node("a", { class: "tip", hidden: "" });
  const note = node("p", { class: "note", role: "status" });
  const lead = `By ${map.by}: they hold ${(100 * map.holds).toFixed(0)} % of the variance, so what is near here need not be near in all coordinates.`;
  const labels = clusters.map((cluster) => node("span", { class: "cluster", "aria-hidden": "true" }, nameCluster(cluster)));
  const stage = node("div", { class: "atlas" }, canvas, ...labels, tip);
  root.replaceChildren(
    node("h1", {}, "Map"),
    node("p", { class: "lead" }, lead),
    stage,
    note,
    legend(about),
    listClusters(clusters, about.kind === "image"),
  );
  const state = { at: -1, size: [0, 0], group };
  const { middle, extent } = boundsOf(places);
  const toScreen = (x, y) => {
    const [w, h] = state.size;
    const scale = Math.min((w - 48) / extent[0], (h - 48) / extent[1]); // the same for both axes
    return [w / 2 + (x - middle[0]) * scale, h / 2 - (y - middle[1]) * scale];
  };
  const spot = (i) => toScreen(places[2 * i], places[2 * i + 1]);
  const draw = () => {
    const [w, h] = (state.size = [stage.clientWidth, stage.clientHeight]);
    Object.assign(canvas, { width: w * devicePixelRatio, height: h * devicePixelRatio });
    placeLabels(
      labels,
      clusters.map(({ x, y }) => toScreen(x, y)),
    );
    const pen = canvas.getContext("2d");
    pen.scale(devicePixelRatio, devicePixelRatio);
    const ink = getComputedStyle(document.body);
    const r = count > 3000 ? 2 : count > 400 ? 3.5 : 6;
    pen.globalAlpha = count > 3000 ? 0.55 : 0.85;
    for (let i = 0; i < count; i++) {
      const [x, y] = spot(i);
      const { colour, mark } = look(state.group[i]);
      pen.fillStyle = colour ?? ink.getPropertyValue("--soft");
      pen.beginPath();
      if (mark === "square") pen.rect(x - 0.9 * r, y - 0.9 * r, 1.8 * r, 1.8 * r);
      else if (mark === "triangle")
        [
          [0, -1.2],
          [1.1, 0.8],
          [-1.1, 0.8],
        ].forEach(([dx, dy]) => pen.lineTo(x + dx * r, y + dy * r));
      else pen.arc(x, y, r, 0, 7);
      pen.fill();
    }
    if (state.at < 0) return;
    const [x, y] = spot(state.at);
    Object.assign(pen, { globalAlpha: 1, lineWidth: 2.5, strokeStyle: ink.getPropertyValue("--ink") });
    pen.beginPath();
    pen.arc(x, y, r + 4, 0, 7);
    pen.stroke();
  };
  const point = async (i) => {
    if (i === state.at) return;
    state.at = i;
    draw();
    tip.hidden = i < 0;
    if (i < 0) return;
    const one = await label(i);
    if (state.at !== i) return;
    const [x, y] = spot(i);
    tip.href = address.item(one.id);
    tip.replaceChildren(
      ...(about.kind === "image" ? [node("img", { src: address.content(one.id, "thumbnail"), alt: "" })] : []),
      node("span", {}, one.name),
    );
    const [w, h] = state.size;
    Object.assign(tip.style, { left: `${Math.min(x + 12, Math.max(w - 190, 0))}px`, top: `${Math.min(y + 12, Math.max(h - 150, 0))}px` });
    note.textContent = `${one.name}${one.group ? `, ${one.group}` : ""}`;
  };
  const nearest = (px, py) => {
    let [best, least] = [-1, FAR ** 2];
    for (let i = 0; i < count; i++) {
      const [x, y] = spot(i);
      const far = (x - px) ** 2 + (y - py) ** 2;
      if (far < least) [best, least] = [i, far];
    }
    return best;
  };
  const under = (event) => {
    const box = canvas.getBoundingClientRect();
    return nearest(event.clientX - box.left, event.clientY - box.top);
  };
  const open = async () => state.at >= 0 && address.go(address.item((await label(state.at)).id));
  canvas.addEventListener("pointermove", (event) => point(under(event)));
  canvas.addEventListener("click", async (event) => (await point(under(event)), open()));
  canvas.addEventListener("focus", () => state.at < 0 && canvas.matches(":focus-visible") && point(0));
  canvas.addEventListener("keydown", (event) => {
    const way = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
    if (event.key === "Enter") open();
    else if (way) point(step(Math.max(state.at, 0), way, count, spot));
    else return;
    event.preventDefault();
  });
  new ResizeObserver(draw).observe(stage);
  draw();
}

const nameCluster = ({ text, typical }) => text || typical.name;

/** Put labels where they are, except those that would cover one before them: clusters come largest first. */
function placeLabels(labels, spots) {
  const shown = [];
  labels.forEach((label, k) => {
    const half = label.offsetWidth / 2;
    const x = Math.max(half, Math.min(spots[k][0], label.parentElement.clientWidth - half));
    Object.assign(label.style, { left: `${x}px`, top: `${spots[k][1]}px`, visibility: "visible" });
    const box = label.getBoundingClientRect();
    const covers = (other) => box.left < other.right && other.left < box.right && box.top < other.bottom && other.top < box.bottom;
    if (shown.some(covers)) label.style.visibility = "hidden";
    else shown.push(box);
  });
}

/** The clusters as a list: how many items, how stable, and a typical one. */
function listClusters(clusters, isPicture) {
  if (!clusters.length) return "";
  const entry = (cluster) => {
    const { count, stability, typical } = cluster;
    const trust = stability == null ? "" : stability >= 0.75 ? "stable" : stability >= 0.5 ? "less stable" : "not stable";
    const figures = [counted(count, "item"), trust && `${trust}: ${stability.toFixed(2)}`].filter(Boolean).join(", ");
    return node(
      "li",
      {},
      node(
        "a",
        { href: address.item(typical.id), title: typical.name },
        isPicture ? node("img", { src: address.content(typical.id, "thumbnail"), alt: "", loading: "lazy" }) : null,
        node("b", {}, nameCluster(cluster)),
      ),
      node("span", {}, figures),
    );
  };
  return node(
    "section",
    { class: "clusters" },
    node("h2", {}, "Clusters"),
    node("p", {}, "By k-means, each with its most typical item. Stable: the items stay together when others are left out."),
    node("ul", {}, ...clusters.map(entry)),
  );
}

/**
 * Colour and mark of a group, different for each of the first `APART` groups; others have none.
 * @param {number} k
 * @returns {{ colour?: string, mark?: string }}
 */
export const look = (k) => (k < APART ? { colour: COLOURS[k % COLOURS.length], mark: MARKS[Math.floor(k / COLOURS.length)] } : {});

/** The middle and the extent of all points along both axes. */
function boundsOf(places) {
  const [low, high] = [
    [Infinity, Infinity],
    [-Infinity, -Infinity],
  ];
  places.forEach((t, k) => ([low[k % 2], high[k % 2]] = [Math.min(low[k % 2], t), Math.max(high[k % 2], t)]));
  return { middle: [0, 1].map((d) => (low[d] + high[d]) / 2), extent: [0, 1].map((d) => high[d] - low[d] || 1) };
}

/** The nearest point within 45° of a direction. */
function step(from, [dx, dy], count, spot) {
  const [x, y] = spot(from);
  let [best, least] = [from, Infinity];
  for (let i = 0; i < count; i++) {
    const [cx, cy] = spot(i);
    const along = (cx - x) * dx + (cy - y) * dy;
    const across = Math.abs((cx - x) * dy) + Math.abs((cy - y) * dx);
    if (i !== from && along > 0.5 && across <= along && along + across < least) [best, least] = [i, along + across];
  }
  return best;
}

/** The number of each item's group, for its colour. Only the first 4,000 items are fetched; later ones are `UNKNOWN`. */
export async function groupsOf(about, count, signal) {
  const groups = new Map(about.groups.map(({ name }, k) => [name, k]));
  const indices = new Uint16Array(count).fill(UNKNOWN);
  if (groups.size < 2) return indices;
  const pages = Array.from({ length: Math.ceil(Math.min(count, 4000) / 200) }, (_, k) =>
    fetched(`/api/items?offset=${200 * k}&limit=200`, signal),
  );
  for (const { offset, items } of await Promise.all(pages))
    items.forEach(({ group }, k) => (indices[offset + k] = groups.get(group) ?? UNKNOWN));
  return indices;
}

function legend({ groups }) {
  if (groups.length < 2) return "";
  const entry = ({ name }, k) => {
    const { colour, mark } = look(k);
    const dot = node("i", { class: mark });
    dot.style.background = colour;
    return node("li", {}, node("a", { href: address.group(name) }, dot, name || "no group"));
  };
  return node("ul", { class: "legend", "aria-label": "Groups" }, ...groups.slice(0, APART).map(entry));
}

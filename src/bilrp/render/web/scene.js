// One module, no dependencies. Top half: pure functions (decode, Algorithm 1, geometry, words).
// Bottom half: one state, one paint(), and the events that change the state.

const SVG = "http://www.w3.org/2000/svg";
const OTHER = { a: "b", b: "a" };
const FAINTEST = 1 / 512; // less than half a grey level: a link that no screen can show
const MOST_ARCS = 5000; // the strongest are drawn: more would neither be read nor follow a slider
const DASH = [5, 4]; // in the colour-blind-safe palette the sign is also in the line

// ---------------------------------------------------------------- pairs

function bytes(text) {
  const raw = atob(text);
  const out = new Uint8Array(raw.length);
  for (let k = 0; k < raw.length; k++) out[k] = raw.charCodeAt(k);
  return out.buffer;
}

function scaled(text, scale) {
  const steps = new Int16Array(bytes(text));
  return Float64Array.from(steps, (step, k) => step * scale[k % scale.length]);
}

/** Undo zlib; the steps came as all low bytes, then all high bytes. */
async function inflated(text, scale) {
  const stream = new Blob([bytes(text)]).stream().pipeThrough(new DecompressionStream("deflate"));
  const planes = new Uint8Array(await new Response(stream).arrayBuffer());
  const high = new Int8Array(planes.buffer, planes.length / 2);
  return Float64Array.from(high, (top, k) => (256 * top + planes[k]) * scale);
}

/** R[i, j] row by row; where the two factors travelled they are contracted here: R = L Mᵀ. */
export async function decodePairs(pairs) {
  if (pairs.kind === "matrix") return Float64Array.from(new Float32Array(bytes(pairs.data)));
  if (pairs.kind === "deflated") return inflated(pairs.data, pairs.scale);
  const { rows, columns, rank } = pairs;
  const left = scaled(pairs.left.data, pairs.left.scale);
  const right = scaled(pairs.right.data, pairs.right.scale);
  const out = new Float64Array(rows * columns);
  for (let i = 0; i < rows; i++)
    for (let j = 0; j < columns; j++) {
      let sum = 0;
      for (let m = 0; m < rank; m++) sum += left[i * rank + m] * right[j * rank + m];
      out[i * columns + j] = sum;
    }
  return out;
}

/** The fourth root of E[R⁴]: Algorithm 1's unit. Divided by the largest first, so that R⁴ cannot underflow. */
export function fourthMoment(relevance) {
  let top = 0;
  for (const r of relevance) top = Math.max(top, Math.abs(r));
  if (top === 0) return 1;
  let sum = 0;
  for (const r of relevance) sum += (r / top) ** 4;
  return top * (sum / relevance.length) ** 0.25;
}

/**
 * Algorithm 1 of Appendix F: [{pair, value, alpha}], weakest first; value in [-1, 1] carries the sign.
 * Pairs with |R| below `least` are left out: opacity grows with |R|, so these are the faintest.
 */
export function links(relevance, { l, h, p }, unit = fourthMoment(relevance), least = 0) {
  const delta = h - l;
  const out = [];
  for (let pair = 0; pair < relevance.length; pair++) {
    if (Math.abs(relevance[pair]) < least) continue;
    const r = relevance[pair] / unit; // normalisation
    const beyond = Math.abs(r) - l; // sparsification: R − clip(R, [−l, l])
    if (beyond <= 0) continue;
    const value = Math.sign(r) * Math.min(beyond / delta, 1); // thresholding
    out.push({ pair, value, alpha: Math.abs(value) ** p }); // opacity
  }
  return out.sort((x, y) => x.alpha - y.alpha);
}

/** Indices of the k largest |values|, largest first. */
export function strongest(values, k) {
  const best = [];
  for (let n = 0; n < values.length; n++) {
    const size = Math.abs(values[n]);
    if (size === 0 || (best.length === k && size <= Math.abs(values[best[k - 1]]))) continue;
    let at = best.length;
    while (at > 0 && Math.abs(values[best[at - 1]]) < size) at--;
    best.splice(at, 0, n);
    if (best.length > k) best.pop();
  }
  return best;
}

/** Relevance of every partner of the chosen regions of one side: the sum of their rows (or columns). */
export function partners(relevance, rows, columns, side, chosen) {
  const out = new Float64Array(side === "a" ? columns : rows);
  for (const i of chosen)
    for (let j = 0; j < out.length; j++)
      out[j] += side === "a" ? relevance[i * columns + j] : relevance[j * columns + i];
  return out;
}

const onlySigns = (values, shown) => values.map((v) => ((v > 0 ? shown.positive : shown.negative) ? v : 0));

// ---------------------------------------------------------------- geometry

const boxPath = ([top, left, bottom, right]) => `M${left} ${top}H${right}V${bottom}H${left}Z`;

/** Which region each pixel belongs to; -1 for none. */
function labelMap({ runs, boxes, width, height }) {
  const map = new Int32Array(width * height).fill(-1);
  if (runs) for (let k = 0, at = 0; k < runs.length; at += runs[k + 1], k += 2) map.fill(runs[k], at, at + runs[k + 1]);
  else
    boxes.forEach(([top, left, bottom, right], i) => {
      for (let y = top; y < bottom; y++) map.fill(i, y * width + left, y * width + right);
    });
  return map;
}

/** For each region the directed pixel edges of its border, region on the right hand: start -> [ends]. */
function borderEdges({ width, height }, map, count) {
  const edges = Array.from({ length: count }, () => new Map());
  const at = (x, y) => (x < 0 || y < 0 || x >= width || y >= height ? -1 : map[y * width + x]);
  const corner = (x, y) => y * (width + 1) + x;
  const add = (label, from, to) => {
    const ends = edges[label].get(from);
    if (ends) ends.push(to);
    else edges[label].set(from, [to]);
  };
  for (let y = 0; y < height; y++)
    for (let x = 0; x < width; x++) {
      const label = at(x, y);
      if (label < 0) continue;
      if (at(x, y - 1) !== label) add(label, corner(x, y), corner(x + 1, y));
      if (at(x + 1, y) !== label) add(label, corner(x + 1, y), corner(x + 1, y + 1));
      if (at(x, y + 1) !== label) add(label, corner(x + 1, y + 1), corner(x, y + 1));
      if (at(x - 1, y) !== label) add(label, corner(x, y + 1), corner(x, y));
    }
  return edges;
}

/** Outlines of regions of any shape, holes included (fill rule: even-odd). */
export function outlines(places, map, count) {
  const w = places.width + 1;
  return borderEdges(places, map, count).map((ends) => {
    let path = "";
    for (const start of [...ends.keys()])
      while (ends.get(start)?.length) {
        let here = start;
        let way = 0;
        path += `M${here % w} ${Math.floor(here / w)}`;
        do {
          const next = ends.get(here).pop();
          if (next - here !== way && way) path += `L${here % w} ${Math.floor(here / w)}`;
          way = next - here;
          here = next;
        } while (here !== start);
        path += "Z";
      }
    return path;
  });
}

/** A centre that lies in the region: the mean of its pixels, moved to the nearest of them. */
function maskCentres(places, map, count) {
  const of = Array.from({ length: count }, () => []);
  map.forEach(
    (label, k) => label >= 0 && of[label].push([(k % places.width) + 0.5, Math.floor(k / places.width) + 0.5]),
  );
  return of.map((points) => {
    if (!points.length) return [0, 0];
    const mean = [0, 1].map((d) => points.reduce((s, p) => s + p[d], 0) / points.length);
    const far = (p) => (p[0] - mean[0]) ** 2 + (p[1] - mean[1]) ** 2;
    return points.reduce((best, p) => (far(p) < far(best) ? p : best));
  });
}

/** Words in boxes, line by line, as wide as their text: regions without a place in a picture. */
function flowWords(words, width, measure) {
  const height = 36;
  const gap = 6;
  const lines = [[]];
  let x = 0;
  words.forEach((word, i) => {
    const w = Math.min(width, Math.ceil(measure(word)) + 22);
    if (x + w > width && x > 0) {
      lines.push([]);
      x = 0;
    }
    lines.at(-1).push({ i, x, w });
    x += w + gap;
  });
  const boxes = [];
  lines.forEach((line, row) => {
    const last = line.at(-1);
    const margin = last ? (width - last.x - last.w) / 2 : 0;
    const top = row * (height + gap) + 1;
    for (const { i, x: left, w } of line) boxes[i] = [top, margin + left, top + height, margin + left + w];
  });
  return { width, height: lines.length * (height + gap) - gap + 2, boxes };
}

/** What is drawn for one side: size, paths, centres and boxes in the side's own units. */
export function shapeOf(side, width, measure) {
  if (!side.places) {
    const words = flowWords(side.names ?? Array.from({ length: side.count }, (_, i) => `${i + 1}`), width, measure);
    return { ...words, paths: words.boxes.map(boxPath), centres: words.boxes.map(middle), words: true };
  }
  const { boxes, runs } = side.places;
  const map = labelMap(side.places);
  return {
    width: side.places.width,
    height: side.places.height,
    boxes,
    paths: runs ? outlines(side.places, map, side.count) : boxes.map(boxPath),
    centres: runs ? maskCentres(side.places, map, side.count) : boxes.map(middle),
    words: false,
    map,
  };
}

/** One outline around all the chosen regions. */
function union(shape, chosen) {
  if (chosen.size < 2 || shape.words) return [...chosen].map((i) => shape.paths[i]).join("");
  return outlines(
    shape,
    shape.map.map((i) => (chosen.has(i) ? 0 : -1)),
    1,
  )[0];
}

const middle = ([top, left, bottom, right]) => [(left + right) / 2, (top + bottom) / 2];

/** Where the two sides lie on a stage of this width: beside each other, or stacked where it is narrow. */
export function layout(data, width, tall, measure) {
  const stacked = width < 620 || (!data.a.places && !data.b.places);
  const words = !data.a.places && !data.b.places;
  const gap = stacked ? (words ? 170 : 64) : Math.min(190, Math.max(56, width * 0.15));
  const most = stacked ? width : (width - gap) / 2;
  const fit = (side) => {
    const shape = shapeOf(side, most, measure);
    const scale = shape.words ? 1 : Math.min(most / shape.width, tall / shape.height);
    return { shape, w: shape.width * scale, h: shape.height * scale };
  };
  const a = fit(data.a);
  const b = fit(data.b);
  if (stacked) {
    const placed = { ...b, x: (width - b.w) / 2, y: a.h + gap };
    return { stacked, width, height: a.h + gap + b.h, a: { ...a, x: (width - a.w) / 2, y: 0 }, b: placed };
  }
  const left = (width - a.w - b.w - gap) / 2;
  const height = Math.max(a.h, b.h);
  return {
    stacked,
    width,
    height,
    a: { ...a, x: left, y: (height - a.h) / 2 },
    b: { ...b, x: left + a.w + gap, y: (height - b.h) / 2 },
  };
}

/** The part of a side that is seen at this zoom: [x, y, width, height]. */
function view({ shape }, { k, x, y }) {
  const w = shape.width / k;
  const h = shape.height / k;
  const keep = (centre, size, all) => Math.min(Math.max(centre - size / 2, 0), all - size);
  return [keep(x ?? shape.width / 2, w, shape.width), keep(y ?? shape.height / 2, h, shape.height), w, h];
}

/** From a side's own units to the stage; what is out of sight sticks to the frame. */
function toStage(panel, zoom, [x, y]) {
  const [vx, vy, vw, vh] = view(panel, zoom);
  const clamp = (t) => Math.min(Math.max(t, 0), 1);
  return [panel.x + clamp((x - vx) / vw) * panel.w, panel.y + clamp((y - vy) / vh) * panel.h];
}

/** Control points of one arc from a to b, bowed to one side so that pairs in one row stay apart. */
export function arc([ax, ay], [bx, by], stacked) {
  const bow = 0.06 * (stacked ? by - ay : bx - ax);
  const at = (t) => [ax + t * (bx - ax) + (stacked ? bow : 0), ay + t * (by - ay) - (stacked ? 0 : bow)];
  return [ax, ay, ...at(0.3), ...at(0.7), bx, by];
}

/** The neighbour of region i in a direction: the nearest centre within 45° of it. */
export function neighbour(centres, i, [dx, dy]) {
  const [x, y] = centres[i];
  let best = i;
  let least = Infinity;
  centres.forEach(([cx, cy], j) => {
    const along = (cx - x) * dx + (cy - y) * dy;
    const across = Math.abs((cx - x) * dy) + Math.abs((cy - y) * dx);
    const far = along + 2 * across;
    if (j !== i && along > 1e-9 && across <= along + 1e-9 && far < least) [best, least] = [j, far];
  });
  return best;
}

/** Regions whose centre lies in the rectangle of two corners. */
function within(centres, [x0, y0], [x1, y1]) {
  const inside = (t, s, e) => t >= Math.min(s, e) - 1e-9 && t <= Math.max(s, e) + 1e-9;
  return centres.flatMap(([x, y], i) => (inside(x, x0, x1) && inside(y, y0, y1) ? [i] : []));
}

// ---------------------------------------------------------------- words and numbers

/** Decimals that show the largest of these numbers to four digits: one column, one precision. */
export function decimals(values) {
  const top = Math.max(...values.map(Math.abs));
  return top > 0 ? Math.min(12, Math.max(0, 3 - Math.floor(Math.log10(top)))) : 0;
}

const plain = (value, digits) =>
  `${value < 0 ? "−" : ""}${Math.abs(value).toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits })}`;
const signed = (value, digits) => (value < 0 ? "" : "+") + plain(value, digits);

function percent(value, whole) {
  if (!whole) return "—";
  const share = (100 * value) / whole;
  const size = Math.abs(share);
  const digits = size >= 100 ? 0 : size >= 1 ? 1 : size >= 0.095 ? 2 : 3;
  return size < 0.0005 ? "0 %" : `${share < 0 ? "−" : ""}${size.toFixed(digits)} %`;
}

const nounOf = (data) => (data.a.names && data.b.names ? "word" : data.a.places && data.b.places ? "region" : "part");

/** 'row 3, column 5 of A': how a region is called, by name, by place, or by number. */
function nameOf(data, side, i) {
  const { names, places } = data[side];
  const letter = side.toUpperCase();
  if (names) return `“${names[i]}” of ${letter}`;
  if (places?.grid) return `row ${Math.floor(i / places.grid[1]) + 1}, column ${(i % places.grid[1]) + 1} of ${letter}`;
  return `region ${i + 1} of ${letter}`;
}

const isDistance = ({ similarity }) => /distance/.test(similarity);
const measureName = (data) =>
  (isDistance(data) ? data.similarity : `${data.similarity} similarity`).replaceAll("_", " ");

/** What is seen, and what it means. */
function leadParts(data, safe) {
  const noun = nounOf(data);
  const colour = (sign, word) => node("span", { class: `sign ${sign}` }, word);
  return [
    `Every arc joins a ${noun} of A to a ${noun} of B; point at a ${noun} and its partners light up on the other side. `,
    colour("positive", safe ? "Orange" : "Red"),
    isDistance(data) ? " pairs raise the model’s distance, " : " pairs raise the model’s similarity score, ",
    colour("negative", safe ? "dashed blue" : "blue"),
    isDistance(data) ? " ones lower it and so make the two alike; " : " ones lower it; ",
    "together with what belongs to no pair they add up to exactly that score: ",
    "this is what the model compared, not what a person would.",
  ];
}

const sum = (values) => values.reduce((s, v) => s + v, 0);
const capital = (text) => text[0].toUpperCase() + text.slice(1);
const same = (x, y) => JSON.stringify(x) === JSON.stringify(y);

// ---------------------------------------------------------------- what is seen, computed from the state

/** The choice that is shown: a list entry under the pointer, else what is pinned, else what is pointed at. */
const activeOf = (app) => app.peek ?? app.pinned ?? app.preview;

const partnersOf = (app, { side, set }) => partners(app.relevance, app.rows, app.columns, side, set);

function normalised(values) {
  const top = values.reduce((m, v) => Math.max(m, Math.abs(v)), 0);
  return { top, values: top ? values.map((v) => v / top) : values };
}

/** {light, chosen, arcs}: light[side][i] in [-1, 1], arcs in the sides' own units, weakest first. */
function sceneOf(app) {
  const active = activeOf(app);
  if (!active) return restScene(app);
  const { side, set, partner } = active;
  const other = OTHER[side];
  const chosen = { [side]: new Set(set), [other]: new Set(partner == null ? [] : [partner]) };
  const all = onlySigns(partnersOf(app, active), app.shown);
  const { values, top } = normalised(partner == null ? all : all.map((v, j) => (j === partner ? v : 0)));
  const centre = (s, is) => [0, 1].map((d) => sum(is.map((i) => app.panels[s].shape.centres[i][d])) / is.length);
  const near = centre(side, set);
  const arcs = app.shown.arcs
    ? strongest(values, 48)
        .reverse()
        .map((j) => {
          const ends = { [side]: near, [other]: app.panels[other].shape.centres[j] };
          return { from: ends.a, to: ends.b, value: values[j], alpha: Math.abs(values[j]) ** app.drawing.p };
        })
    : [];
  return {
    active,
    light: { [side]: null, [other]: values },
    chosen,
    arcs: arcs.filter((x) => x.alpha > FAINTEST),
    top,
  };
}

/** Nothing chosen: every link of Algorithm 1, and on demand each region's share of the score. */
function restScene(app) {
  const centres = (side) => app.panels[side].shape.centres;
  const arcs = app.shown.arcs
    ? restLinks(app).map(({ pair, value, alpha }) => ({
        from: centres("a")[Math.floor(pair / app.columns)],
        to: centres("b")[pair % app.columns],
        value,
        alpha,
      }))
    : [];
  const share = (side) => (app.shown.heat ? normalised(onlySigns(app.shares[side], app.shown)).values : null);
  return {
    active: null,
    light: { a: share("a"), b: share("b") },
    chosen: { a: new Set(), b: new Set() },
    arcs,
    top: 0,
  };
}

/** Kept while l, h, p and the signs stay: pointing around must not redo Algorithm 1. */
function restLinks(app) {
  const { positive, negative } = app.shown;
  const key = JSON.stringify([app.drawing, positive, negative]);
  if (app.kept?.key !== key) {
    const shown = onlySigns(app.relevance, app.shown);
    const found = links(shown, app.drawing, app.unit, leastDrawn(app, shown));
    const count = shown.reduce((n, r) => n + (Math.abs(r) / app.unit > app.drawing.l), 0);
    app.kept = { key, count, links: found.filter(({ alpha }) => alpha > FAINTEST) };
  }
  return app.kept.links;
}

/** |R| of the last pair that is drawn, for each choice of signs. */
function leastDrawn(app, shown) {
  const key = `${app.shown.positive}${app.shown.negative}`;
  app.least[key] ??= shown.length > MOST_ARCS ? shown.map(Math.abs).sort().at(-MOST_ARCS) : 0;
  return app.least[key];
}

/** One or two sentences about what is shown; also what a screen reader says. */
function describe(app) {
  const active = activeOf(app);
  if (!active) return restWords(app);
  const { side, set, partner } = active;
  const values = partnersOf(app, active);
  const who =
    set.length === 1 ? nameOf(app.data, side, set[0]) : `${set.length} ${nounOf(app.data)}s of ${side.toUpperCase()}`;
  const first = set.length === 1 && !app.data[side].names && who.startsWith("row") ? `Region ${who}` : capital(who);
  const probe = partner ?? (app.pinned && app.probe?.side === OTHER[side] ? app.probe.i : null);
  if (probe != null) {
    const digits = decimals([values[probe]]);
    return `${first} with ${nameOf(app.data, OTHER[side], probe)}: ${percent(values[probe], app.whole)} of the score (${signed(values[probe], digits)}).`;
  }
  const best = strongest(onlySigns(values, app.shown), 3);
  const list = best.map((j) => `${nameOf(app.data, OTHER[side], j)} (${percent(values[j], app.whole)})`);
  const tail = list.length
    ? `strongest partner${list.length > 1 ? "s" : ""} ${list.join("; ")}.`
    : "no partner of this sign.";
  return `${first}: ${percent(sum(values), app.whole)} of the score; ${tail}`;
}

function restWords(app) {
  const drawn = restLinks(app).length;
  const number = (n) => n.toLocaleString("en");
  const tail = `Point at a ${nounOf(app.data)}, or press Tab and use the arrow keys.`;
  if (!app.shown.arcs) return tail;
  const which = drawn >= MOST_ARCS ? ` the ${number(drawn)} strongest are drawn.` : "";
  return `${number(app.kept.count)} of ${number(app.relevance.length)} pairs are stronger than l = ${shortNumber(app.drawing.l)}${which ? ":" : "."}${which} ${tail}`;
}

// ---------------------------------------------------------------- building the page, once

function node(name, attributes = {}, ...children) {
  const el = name.startsWith("svg:") ? document.createElementNS(SVG, name.slice(4)) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) if (value != null) el.setAttribute(key, value);
  el.append(...children);
  return el;
}

const byId = (id) => document.getElementById(id);

function createPanel(app, side) {
  const { data } = app;
  const { picture, count, names, places } = data[side];
  const letter = side.toUpperCase();
  const paths = Array.from({ length: count }, (_, i) => {
    const label = `${capital(nameOf(data, side, i))}: ${percent(app.shares[side][i], app.whole)} of the score`;
    return node("svg:path", {
      class: "region",
      role: "option",
      "aria-selected": "false",
      "aria-label": label,
      tabindex: i ? -1 : 0,
      "data-side": side,
      "data-i": i,
      id: `${side}-${i}`,
      "fill-opacity": 0,
    });
  });
  const words = places
    ? []
    : (names ?? paths.map((_, i) => `${i + 1}`)).map((name) => node("svg:text", { "aria-hidden": "true" }, name));
  const list = node(
    "svg:g",
    { role: "listbox", "aria-label": `${capital(nounOf(data))}s of ${letter}`, "aria-multiselectable": "true" },
    ...paths,
  );
  const lines = node("svg:path", { d: "M0 0V2", class: "hatch-line" });
  const hatch = node(
    "svg:pattern",
    { id: `hatch-${side}`, patternUnits: "userSpaceOnUse", width: 2, height: 2, patternTransform: "rotate(45)" },
    node("svg:rect", { width: 2, height: 2, class: "hatch-ground" }),
    lines,
  );
  const image = picture && node("svg:image", { id: `picture-${side}`, href: picture, preserveAspectRatio: "none" });
  const veil = node("svg:rect", { class: "veil" });
  const outline = node("svg:path", { class: "outline", "aria-hidden": "true" });
  const band = node("svg:rect", { class: "band", hidden: "" });
  const root = node(
    "svg:svg",
    { class: `panel ${places ? "placed" : "words"}`, "data-side": side, preserveAspectRatio: "none" },
    node("svg:defs", {}, hatch),
  );
  if (image) root.append(image);
  root.append(veil, list, outline, ...words, band);
  return { root, image, veil, paths, words, outline, band, hatch, last: [] };
}

function createCaption(app, side) {
  const letter = side.toUpperCase();
  const button = (text, label, change) => {
    const el = node("button", { type: "button", "aria-label": `${label} ${letter}` }, text);
    el.addEventListener("click", () => zoomBy(app, side, change));
    return el;
  };
  const level = button("100 %", "Reset zoom of", 0);
  const tools = node(
    "span",
    { class: "zoom", role: "group", "aria-label": `Zoom of ${letter}` },
    button("−", "Zoom out", 1 / 1.5),
    level,
    button("+", "Zoom in", 1.5),
  );
  const name = app.data.names?.[side === "a" ? 0 : 1] ?? "";
  const el = node("div", { class: "caption" }, node("b", {}, letter), node("span", { class: "name", title: name }, name), tools);
  return { el, level };
}

function buildStage(app) {
  const stage = byId("stage");
  const nodes = { a: createPanel(app, "a"), b: createPanel(app, "b") };
  const captions = { a: createCaption(app, "a"), b: createCaption(app, "b") };
  const svg = node(
    "svg:svg",
    { id: "scene", role: "group", "aria-label": "The two inputs" },
    nodes.a.root,
    nodes.b.root,
  );
  const canvas = node("canvas", { "aria-hidden": "true" });
  stage.replaceChildren(captions.a.el, captions.b.el, svg, canvas);
  return Object.assign(app, { stage, svg, canvas, nodes, captions });
}

function buildWords(app) {
  const { data } = app;
  byId("lead").replaceChildren(...leadParts(data, data.palette === "safe"));
  const digits = decimals(Object.values(data.account));
  byId("score").replaceChildren(
    node("span", {}, plain(data.account.score, digits)),
    node("small", {}, measureName(data)),
  );
  for (const [key, value] of data.facts)
    byId("facts").append(node("div", {}, node("dt", {}, key), node("dd", {}, value)));
  for (const name of Object.keys(data.styles))
    byId("controls").elements.style.append(node("option", { value: name }, name.replace("_", " ")));
  byId("controls").elements.style.value = data.style;
}

const ACCOUNT = [
  ["positive", "pairs that raise it"],
  ["negative", "pairs that lower it"],
  ["within_a", "A with itself"],
  ["within_b", "B with itself"],
  ["unattributed", "belongs to no pair"],
  ["score", "score"],
];

/** The account: a waterfall whose last step is the score, and one more row for what is chosen. */
function buildAccount(app) {
  const { account } = app.data;
  let reached = 0;
  const steps = ACCOUNT.filter(([name]) => name in account).map(([name, label]) => {
    const from = name === "score" ? 0 : reached;
    reached = name === "score" ? account.score : reached + account[name];
    return [name, label, from, reached, account[name]];
  });
  const ends = [0, ...steps.map((step) => step[3])];
  steps.push(["chosen", "chosen", 0, 0, 0]);
  app.axis = [Math.min(...ends), Math.max(...ends) - Math.min(...ends) || 1];
  app.digits = decimals(ends);
  app.accountRows = {};
  for (const [name, label, from, to, value] of steps) {
    const bar = node("svg:rect", { y: 0, height: 1 });
    const chart = node("svg:svg", { viewBox: "0 0 100 1", preserveAspectRatio: "none", "aria-hidden": "true" }, bar);
    const cells = { number: node("td", { class: "number" }), share: node("td", { class: "share" }) };
    const row = node(
      "tr",
      { class: name },
      node("th", { scope: "row" }, label),
      node("td", { class: "bar" }, chart),
      cells.number,
      cells.share,
    );
    app.accountRows[name] = { row, bar, ...cells };
    byId("account").tBodies[0].append(row);
    setAccount(app, name, from, to, value);
  }
  byId("explained").textContent = accountWords(app);
}

/** The same in one line: how much of the score the pairs account for. */
function accountWords(app) {
  const { unattributed, score } = app.data.account;
  const noun = nounOf(app.data);
  return `${percent(score - unattributed, app.whole)} of the score is explained by ${noun}s; ${percent(unattributed, app.whole)} comes from biases and other constants that belong to none.`;
}

function setAccount(app, name, from, to, value) {
  const { bar, number, share } = app.accountRows[name];
  const at = (v) => (100 * (v - app.axis[0])) / app.axis[1];
  bar.setAttribute("x", Math.min(at(from), at(to)));
  bar.setAttribute("width", Math.abs(at(to) - at(from)));
  number.textContent = value == null ? "—" : signed(value, app.digits);
  number.dataset.value = value ?? "";
  share.textContent = value == null ? "" : percent(value, app.whole);
}

// ---------------------------------------------------------------- placing and painting

/** Put everything where it belongs at the present width; called at the start and when the width changes. */
function place(app) {
  const width = Math.max(240, app.stage.clientWidth); // a hidden frame has no width yet
  const tall = Math.max(220, Math.min(620, innerHeight * 0.72));
  const probe = document.createElement("canvas").getContext("2d");
  probe.font = `16px ${getComputedStyle(document.body).fontFamily}`;
  const head = 34; // the line with the letter and the zoom
  const found = layout(app.data, width, tall, (word) => probe.measureText(word).width);
  found.a.y += head;
  found.b.y += found.stacked ? 2 * head : head;
  app.panels = found;
  const height = found.height + (found.stacked ? 2 : 1) * head + 2;
  app.size = [width, height];
  app.stage.style.height = `${height}px`;
  app.svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  const density = Math.min(3, devicePixelRatio || 1);
  app.canvas.width = width * density;
  app.canvas.height = height * density;
  app.density = density;
  for (const side of ["a", "b"]) placePanel(app, side);
  paint(app);
}

function placePanel(app, side) {
  const panel = app.panels[side];
  const { shape } = panel;
  const { root, image, veil, paths, words, hatch } = app.nodes[side];
  const set = (el, values) => Object.entries(values).forEach(([k, v]) => el.setAttribute(k, v));
  set(root, { x: panel.x, y: panel.y, width: panel.w, height: panel.h });
  for (const el of [image, veil]) if (el) set(el, { width: shape.width, height: shape.height });
  paths.forEach((path, i) => path.setAttribute("d", shape.paths[i]));
  words.forEach((word, i) => {
    const [x, y] = shape.centres[i];
    set(word, { x, y, "text-anchor": "middle", "dominant-baseline": "central" });
  });
  const grain = (6 * shape.width) / panel.w / 2; // hatching 6 pixels wide at any scale
  hatch.setAttribute("patternTransform", `rotate(45) scale(${grain})`);
  const caption = app.captions[side].el.style;
  Object.assign(caption, { left: `${panel.x}px`, top: `${panel.y - 34}px`, width: `${panel.w}px` });
  applyZoom(app, side);
}

function applyZoom(app, side) {
  app.nodes[side].root.setAttribute("viewBox", view(app.panels[side], app.zoom[side]).join(" "));
  app.captions[side].level.textContent = `${Math.round(100 * app.zoom[side].k)} %`;
}

/** Multiply the zoom about a point (0 resets it). */
function zoomBy(app, side, factor, about) {
  const panel = app.panels[side];
  const [vx, vy, vw, vh] = view(panel, app.zoom[side]);
  const k = factor ? Math.min(12, Math.max(1, app.zoom[side].k * factor)) : 1;
  const [px, py] = about ?? (app.zoom[side].k > 1 ? null : focusPoint(app, side)) ?? [vx + vw / 2, vy + vh / 2];
  const shrink = panel.shape.width / k / vw;
  app.zoom[side] = { k, x: px + (vx + vw / 2 - px) * shrink, y: py + (vy + vh / 2 - py) * shrink };
  if (!about && k > 1 && factor > 1 && shrink < 1) Object.assign(app.zoom[side], { x: px, y: py });
  applyZoom(app, side);
  repaint(app);
}

/** What a zoom without a pointer should keep in the middle: the strongest of what is shown on that side. */
function focusPoint(app, side) {
  const active = activeOf(app);
  if (!active) return null;
  const { centres } = app.panels[side].shape;
  if (active.side === side) return centres[active.set[0]];
  return centres[active.partner ?? strongest(partnersOf(app, active), 1)[0]] ?? null;
}

/** Bring a region into sight when the keyboard reaches it. */
function reveal(app, side, i) {
  const [x, y, w, h] = view(app.panels[side], app.zoom[side]);
  const [top, left, bottom, right] = app.panels[side].shape.boxes[i];
  if (left >= x && right <= x + w && top >= y && bottom <= y + h) return;
  const [cx, cy] = app.panels[side].shape.centres[i];
  Object.assign(app.zoom[side], { x: cx, y: cy });
  applyZoom(app, side);
}

function repaint(app) {
  if (app.waiting) return;
  app.waiting = true;
  requestAnimationFrame(() => {
    app.waiting = false;
    paint(app);
  });
}

function paint(app) {
  const scene = sceneOf(app);
  for (const side of ["a", "b"]) paintPanel(app, side, scene);
  paintArcs(app, scene.arcs);
  const words = describe(app);
  if (byId("readout").textContent !== words) byId("readout").textContent = words;
  const chosen = scene.active && partnersOf(app, scene.active);
  const value = chosen && (scene.active.partner == null ? sum(chosen) : chosen[scene.active.partner]);
  setAccount(app, "chosen", 0, value ?? 0, value);
  app.accountRows.chosen.row.classList.toggle("none", value == null);
  for (const [k, el] of app.items.entries()) el.setAttribute("aria-pressed", same(app.matches[k], app.pinned));
}

function paintPanel(app, side, { light, chosen, active }) {
  const { root, paths, outline, last } = app.nodes[side];
  const frame = union(app.panels[side].shape, chosen[side]);
  if (outline.getAttribute("d") !== frame) outline.setAttribute("d", frame);
  const values = light[side];
  root.classList.toggle("lit", Boolean(values));
  root.classList.toggle("quiet", !active && app.shown.arcs);
  root.classList.toggle("pinned", Boolean(app.pinned));
  paths.forEach((path, i) => {
    const value = values ? values[i] : 0;
    const picked = chosen[side].has(i);
    const key = `${value}${picked}`;
    if (last[i] === key) return;
    last[i] = key;
    path.setAttribute(
      "class",
      `region${value > 0 ? " positive" : value < 0 ? " negative" : ""}${picked ? " chosen" : ""}`,
    );
    path.setAttribute("fill-opacity", Math.abs(value));
  });
  const selected = app.pinned?.side === side ? new Set(app.pinned.set) : new Set();
  paths.forEach((path, i) => {
    const is = String(selected.has(i) || (app.pinned && app.pinned.side !== side && app.pinned.partner === i));
    if (path.getAttribute("aria-selected") !== is) path.setAttribute("aria-selected", is);
  });
  root.classList.toggle("source", active?.side === side);
}

/** The present colours; kept until theme or palette change, for reading a style makes the browser lay out the page. */
function colours(app) {
  const { theme, palette } = document.documentElement.dataset;
  const key = `${theme} ${palette} ${matchMedia("(prefers-color-scheme: dark)").matches}`;
  if (app.ink?.key !== key) {
    const style = getComputedStyle(document.documentElement);
    const names = ["positive", "negative", "paper", "ink", "rule", "veil"];
    const found = names.map((name) => [name, style.getPropertyValue(`--${name}`).trim()]);
    app.ink = { key, safe: palette === "safe", ...Object.fromEntries(found) };
  }
  return app.ink;
}

const arcPoints = (app, { from, to }) =>
  arc(toStage(app.panels.a, app.zoom.a, from), toStage(app.panels.b, app.zoom.b, to), app.panels.stacked);

function paintArcs(app, arcs) {
  const pen = app.canvas.getContext("2d");
  const { positive, negative, safe } = colours(app);
  pen.setTransform(app.density, 0, 0, app.density, 0, 0);
  pen.clearRect(0, 0, ...app.size);
  pen.lineWidth = 1.3;
  pen.lineCap = "round";
  for (const one of arcs) {
    const [ax, ay, c, d, e, f, bx, by] = arcPoints(app, one);
    pen.globalAlpha = one.alpha;
    pen.strokeStyle = one.value > 0 ? positive : negative;
    pen.setLineDash(safe && one.value < 0 ? DASH : []);
    pen.beginPath();
    pen.moveTo(ax, ay);
    pen.bezierCurveTo(c, d, e, f, bx, by);
    pen.stroke();
  }
  app.canvas.dataset.arcs = arcs.length;
}

// ---------------------------------------------------------------- the list of matches

/** The pairs to list: the strongest of all, or the partners of what is pinned. */
function matchesOf(app) {
  if (app.listed) {
    const values = onlySigns(partnersOf(app, app.listed), app.shown);
    return strongest(values, 12).map((partner) => ({ ...app.listed, partner }));
  }
  return strongest(onlySigns(app.relevance, app.shown), 12).map((pair) => ({
    side: "a",
    set: [Math.floor(pair / app.columns)],
    partner: pair % app.columns,
  }));
}

function thumb(app, side, set) {
  const { names, places, picture } = app.data[side];
  if (!places || !picture)
    return node(
      "span",
      { class: "word" },
      set.length > 1 ? `${set.length} ${nounOf(app.data)}s` : names ? names[set[0]] : nameOf(app.data, side, set[0]),
    );
  const boxes = set.map((i) => places.boxes[i]);
  const box = [0, 1]
    .map((d) => Math.min(...boxes.map((b) => b[d])))
    .concat([2, 3].map((d) => Math.max(...boxes.map((b) => b[d]))));
  const size = Math.min(places.width, places.height, 2.6 * Math.max(box[2] - box[0], box[3] - box[1]));
  const start = (from, to, all) => Math.min(Math.max((from + to - size) / 2, 0), all - size);
  const [x, y] = [start(box[1], box[3], places.width), start(box[0], box[2], places.height)];
  return node(
    "svg:svg",
    { class: "thumb", viewBox: `${x} ${y} ${size} ${size}`, "aria-hidden": "true" },
    node("svg:use", { href: `#picture-${side}` }),
    node("svg:path", { d: union(app.panels[side].shape, new Set(set)) }),
  );
}

function listMatches(app) {
  app.matches = matchesOf(app);
  byId("matches-title").textContent = app.listed ? "Partners of what is pinned" : "Strongest pairs";
  app.items = app.matches.map((match) => {
    const value = partnersOf(app, match)[match.partner];
    const sets = { [match.side]: match.set, [OTHER[match.side]]: [match.partner] };
    const name = (side) =>
      sets[side].length > 1
        ? `${sets[side].length} regions of ${side.toUpperCase()}`
        : nameOf(app.data, side, sets[side][0]);
    const label = `${capital(name("a"))} with ${name("b")}: ${percent(value, app.whole)} of the score`;
    const el = node(
      "button",
      { type: "button", class: value > 0 ? "positive" : "negative", "aria-label": label, "aria-pressed": "false" },
      thumb(app, "a", sets.a),
      thumb(app, "b", sets.b),
      node("span", { class: "share" }, percent(value, app.whole)),
    );
    const peek = (on) => () => change(app, { peek: on ? match : null });
    for (const [event, on] of [
      ["pointerenter", true],
      ["focus", true],
      ["pointerleave", false],
      ["blur", false],
    ])
      el.addEventListener(event, peek(on));
    el.addEventListener("click", () =>
      change(app, { pinned: same(app.pinned, match) ? null : match, peek: same(app.pinned, match) ? null : match }),
    );
    return el;
  });
  byId("matches").replaceChildren(...app.items.map((el) => node("li", {}, el)));
}

// ---------------------------------------------------------------- what the reader does

function change(app, values) {
  Object.assign(app, values);
  repaint(app);
}

/** Pin a choice (or let it go when it is pinned already); the list then shows its partners. */
function pin(app, choice) {
  const free = !choice || same(app.pinned, choice);
  Object.assign(app, { pinned: free ? null : choice, listed: free ? null : choice, peek: null });
  if (!choice) app.preview = null;
  if (app.pinned) tabStop(app, OTHER[choice.side], strongest(partnersOf(app, choice), 1)[0] ?? 0);
  listMatches(app);
  repaint(app);
}

function regionAt(event) {
  const el = event.target.closest?.(".region");
  return el ? { side: el.dataset.side, i: Number(el.dataset.i) } : null;
}

/** A pointer's place in the units of one side. */
function pointIn(app, side, event) {
  const frame = app.svg.getBoundingClientRect();
  const panel = app.panels[side];
  const [vx, vy, vw, vh] = view(panel, app.zoom[side]);
  const clamp = (t) => Math.min(Math.max(t, 0), 1);
  const x = clamp((event.clientX - frame.left - panel.x) / panel.w);
  const y = clamp((event.clientY - frame.top - panel.y) / panel.h);
  return [vx + x * vw, vy + y * vh];
}

function listenPointer(app) {
  let drag = null;
  app.svg.addEventListener("pointermove", (event) => {
    if (drag) return dragTo(app, drag, event);
    const at = regionAt(event);
    return change(app, { probe: at, preview: at && { side: at.side, set: [at.i] } });
  });
  app.svg.addEventListener("pointerleave", () => drag || change(app, { probe: null, preview: null }));
  app.svg.addEventListener("pointerdown", (event) => {
    const panel = event.target.closest?.(".panel");
    if (!panel || event.button > 1) return;
    const { side } = panel.dataset;
    drag = {
      side,
      at: regionAt(event),
      start: pointIn(app, side, event),
      x: event.clientX,
      y: event.clientY,
      id: event.pointerId,
      zoom: { ...app.zoom[side] },
      pan: event.shiftKey || event.button === 1,
    };
    if (drag.pan) event.preventDefault();
  });
  const end = (event) => {
    const was = drag;
    drag = null;
    if (!was) return;
    app.nodes[was.side].band.setAttribute("hidden", "");
    if (event.type === "pointercancel" || was.pan) return;
    if (was.moved) pin(app, was.set.length ? { side: was.side, set: was.set } : null);
    else pin(app, was.at ? { side: was.at.side, set: [was.at.i] } : null);
  };
  app.svg.addEventListener("pointerup", end);
  app.svg.addEventListener("pointercancel", end);
  app.svg.addEventListener(
    "wheel",
    (event) => {
      const panel = event.target.closest?.(".panel");
      if (!panel || !event.ctrlKey) return; // a pinch arrives as ctrl + wheel; a plain wheel scrolls the page
      event.preventDefault();
      zoomBy(app, panel.dataset.side, Math.exp(-event.deltaY / 200), pointIn(app, panel.dataset.side, event));
    },
    { passive: false },
  );
}

/** While the button is down: move the picture (shift) or stretch the selection. */
function dragTo(app, drag, event) {
  const { side } = drag;
  if (!drag.moved && Math.hypot(event.clientX - drag.x, event.clientY - drag.y) < 5) return;
  if (!drag.moved) app.svg.setPointerCapture(drag.id);
  drag.moved = true;
  if (drag.pan) {
    const panel = app.panels[side];
    const [vx, vy, vw, vh] = view(panel, drag.zoom);
    app.zoom[side] = {
      k: drag.zoom.k,
      x: vx + vw / 2 - ((event.clientX - drag.x) / panel.w) * vw,
      y: vy + vh / 2 - ((event.clientY - drag.y) / panel.h) * vh,
    };
    applyZoom(app, side);
    repaint(app);
    return;
  }
  const end = pointIn(app, side, event);
  const { band } = app.nodes[side];
  const box = [0, 1].map((d) => Math.min(drag.start[d], end[d]));
  const size = [0, 1].map((d) => Math.abs(drag.start[d] - end[d]));
  for (const [k, v] of Object.entries({ x: box[0], y: box[1], width: size[0], height: size[1] }))
    band.setAttribute(k, v);
  band.removeAttribute("hidden");
  drag.set = within(app.panels[side].shape.centres, drag.start, end);
  change(app, { pinned: null, probe: null, preview: drag.set.length ? { side, set: drag.set } : null });
}

/** One region of each side is reached by Tab; the arrow keys reach the others from there. */
function tabStop(app, side, i) {
  for (const path of app.nodes[side].paths) if (path.tabIndex === 0) path.setAttribute("tabindex", -1);
  app.nodes[side].paths[i].setAttribute("tabindex", 0);
}

const ARROWS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };

function listenKeys(app) {
  app.svg.addEventListener("focusin", (event) => {
    const at = regionAt(event);
    if (!at) return;
    tabStop(app, at.side, at.i);
    if (!event.target.matches(":focus-visible")) return; // a click pins by itself
    reveal(app, at.side, at.i);
    change(app, { probe: at, preview: { side: at.side, set: [at.i] } });
  });
  app.svg.addEventListener("focusout", () => change(app, { probe: null, preview: null }));
  app.svg.addEventListener("keydown", (event) => {
    const at = regionAt(event);
    if (!at || event.ctrlKey || event.metaKey || event.altKey) return;
    if (regionKey(app, event, at)) event.preventDefault();
  });
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") pin(app, null);
  });
}

function regionKey(app, event, { side, i }) {
  const { paths } = app.nodes[side];
  const go = (to) => paths[to].focus();
  if (event.key in ARROWS) {
    const to = neighbour(app.panels[side].shape.centres, i, ARROWS[event.key]);
    if (!event.shiftKey) app.anchor = null;
    else app.anchor ??= i;
    go(to);
    if (event.shiftKey) stretch(app, side, to);
  } else if (event.key === "Home") go(0);
  else if (event.key === "End") go(paths.length - 1);
  else if (event.key === "Enter" || event.key === " ")
    pin(app, app.anchor != null && app.pinned?.side === side ? null : { side, set: [i] });
  else if (event.key === "+" || event.key === "=") zoomBy(app, side, 1.5);
  else if (event.key === "-") zoomBy(app, side, 1 / 1.5);
  else if (event.key === "0") zoomBy(app, side, 0);
  else return false;
  return true;
}

/** Shift and arrows: everything between where it began and here, pinned. */
function stretch(app, side, to) {
  const { centres } = app.panels[side].shape;
  const set = within(centres, centres[app.anchor], centres[to]);
  if (!same(app.pinned, { side, set })) pin(app, { side, set });
}

// ---------------------------------------------------------------- sliders and switches

const RANGE = { l: 3, h: 2.5 }; // decades that the two logarithmic sliders cover
const STEPS = 500;

const ceiling = (app, name) => (name === "p" ? 4 : name === "h" ? Math.max(60, app.top) : app.top);

function fromSlider(app, name, step) {
  if (name === "p") return Math.round((0.25 + (3.75 * step) / STEPS) * 100) / 100;
  if (name === "l" && step === 0) return 0;
  return ceiling(app, name) * 10 ** (-RANGE[name] * (1 - step / STEPS));
}

function toSlider(app, name, value) {
  if (name === "p") return (STEPS * (value - 0.25)) / 3.75;
  if (value <= 0) return 0;
  return STEPS * (1 + Math.log10(value / ceiling(app, name)) / RANGE[name]);
}

const shortNumber = (value) => String(Number(value.toPrecision(value < 0.1 ? 2 : 3)));

function showDrawing(app) {
  for (const name of ["l", "h", "p"]) {
    const input = byId("controls").elements[name];
    const text = shortNumber(app.drawing[name]);
    Object.assign(input, { min: 0, max: STEPS, step: 1 });
    input.value = Math.round(toSlider(app, name, app.drawing[name]));
    input.setAttribute("aria-valuetext", text);
    input.parentElement.querySelector("output").textContent = text;
  }
}

/** l stays below h: the slider that moves pushes the other along. */
function setDrawing(app, name, value) {
  const next = { ...app.drawing, [name]: value };
  if (next.l >= next.h) Object.assign(next, name === "l" ? { h: next.l * 1.1 } : { l: next.h / 1.1 });
  app.drawing = next;
  showDrawing(app);
  repaint(app);
}

function listenControls(app) {
  const form = byId("controls");
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("input", ({ target }) => {
    if (target.type === "range") {
      form.elements.style.value = "";
      setDrawing(app, target.name, fromSlider(app, target.name, Number(target.value)));
    } else if (target.name === "style") {
      app.drawing = { ...(app.data.styles[target.value] ?? app.data.drawing) };
      showDrawing(app);
      repaint(app);
    } else if (target.name === "safe") {
      byId("lead").replaceChildren(...leadParts(app.data, target.checked));
      setRoot(app, "palette", target.checked ? "safe" : "paper");
    } else {
      app.shown = { ...app.shown, [target.name]: target.checked };
      listMatches(app);
      repaint(app);
    }
  });
  byId("theme").addEventListener("input", ({ target }) => setRoot(app, "theme", target.value));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => repaint(app));
  byId("save-svg").addEventListener("click", () => download(new Blob([figure(app)], { type: "image/svg+xml" }), "svg"));
  byId("save-png").addEventListener("click", () => savePng(app));
}

function setRoot(app, key, value) {
  document.documentElement.dataset[key] = value;
  repaint(app);
}

// ---------------------------------------------------------------- saving what is seen

const escape = (text) => String(text).replace(/[&<>"']/g, (c) => `&#${c.charCodeAt(0)};`);
const round = (x) => Number(x.toFixed(2));

function figurePanel(app, side, scene, ink) {
  const panel = app.panels[side];
  const { shape } = panel;
  const { picture, names } = app.data[side];
  const [vx, vy, vw, vh] = view(panel, app.zoom[side]);
  const whole = `width="${shape.width}" height="${shape.height}"`;
  const values = scene.light[side];
  const [grey, veil] = values ? [0, ink.veil] : scene.active || !scene.arcs.length ? [1, 0] : [0.35, 0.3];
  const filter = `<filter id="grey-${side}"><feColorMatrix type="saturate" values="${grey}"/></filter>`;
  const parts = [
    picture
      ? `${filter}<image ${whole} preserveAspectRatio="none" filter="url(#grey-${side})" href="${picture}"/>`
      : "",
  ];
  if (picture) parts.push(`<rect ${whole} fill="${ink.paper}" fill-opacity="${veil}"/>`);
  shape.paths.forEach((d, i) => {
    const value = values?.[i] ?? 0;
    if (!value && !shape.words) return;
    parts.push(
      `<path d="${d}" fill="${value < 0 ? ink.negative : ink.positive}" fill-opacity="${round(0.88 * Math.abs(value))}" fill-rule="evenodd" stroke="${shape.words ? ink.rule : "none"}" vector-effect="non-scaling-stroke"/>`,
    );
    if (shape.words)
      parts.push(
        `<text x="${round(shape.centres[i][0])}" y="${round(shape.centres[i][1])}" text-anchor="middle" dominant-baseline="central" font-size="16" fill="${ink.ink}">${escape(names ? names[i] : i + 1)}</text>`,
      );
  });
  const frame = union(shape, scene.chosen[side]);
  for (const [colour, width] of [
    ["#000", 4],
    ["#fff", 2],
  ])
    if (frame)
      parts.push(
        `<path d="${frame}" fill="none" stroke="${colour}" stroke-width="${width}" vector-effect="non-scaling-stroke"/>`,
      );
  return `<svg x="${round(panel.x)}" y="${round(panel.y)}" width="${round(panel.w)}" height="${round(panel.h)}" viewBox="${[vx, vy, vw, vh].map(round).join(" ")}" preserveAspectRatio="none">${parts.join("")}</svg>`;
}

/** Words broken into lines of at most this width. */
function wrapped(words, width, font) {
  const pen = document.createElement("canvas").getContext("2d");
  pen.font = font;
  const lines = [""];
  for (const word of words.split(" ")) {
    const longer = lines.at(-1) ? `${lines.at(-1)} ${word}` : word;
    if (lines.at(-1) && pen.measureText(longer).width > width) lines.push(word);
    else lines[lines.length - 1] = longer;
  }
  return lines;
}

function figureArc(app, one, ink) {
  const [ax, ay, c, d, e, f, bx, by] = arcPoints(app, one).map(round);
  const dash = ink.safe && one.value < 0 ? ` stroke-dasharray="${DASH}"` : "";
  return `<path d="M${ax} ${ay}C${c} ${d} ${e} ${f} ${bx} ${by}" stroke="${one.value > 0 ? ink.positive : ink.negative}" stroke-opacity="${Number(one.alpha.toPrecision(3))}"${dash}/>`;
}

/** Under the picture: what it shows, then the account and how it was drawn. */
function figureNotes(app) {
  const { account } = app.data;
  const { l, h, p } = app.drawing;
  const parts = ACCOUNT.filter(([name]) => name in account && name !== "score");
  const spelt = parts.map(([name, label]) => `${signed(account[name], app.digits)} ${label}`);
  const total = `${spelt.join(", ")} = ${plain(account.score, app.digits)} ${measureName(app.data)} · l ${shortNumber(l)}, h ${shortNumber(h)}, p ${shortNumber(p)} · bilrp`;
  const told = activeOf(app) ? wrapped(describe(app), app.size[0], "14px system-ui, sans-serif") : [];
  return [
    ...told.map((words) => [words, 'font-size="14"']),
    ...wrapped(total, app.size[0], "12px system-ui, sans-serif").map((words) => [
      words,
      'font-size="12" opacity="0.7"',
    ]),
  ];
}

/** The present view as an SVG file: pictures inside, colours resolved, the account underneath. */
function figure(app) {
  const scene = sceneOf(app);
  const ink = colours(app);
  const [width, height] = app.size;
  const notes = figureNotes(app);
  const text = (x, y, words, more) =>
    `<text x="${round(x)}" y="${round(y)}" fill="${ink.ink}" ${more}>${escape(words)}</text>`;
  const all = height + 96 + 21 * notes.length;
  return [
    `<svg xmlns="${SVG}" width="${width + 48}" height="${all}" viewBox="-24 -56 ${width + 48} ${all}" font-family="system-ui, sans-serif">`,
    `<title>${escape(app.data.title)}</title><rect x="-24" y="-56" width="100%" height="100%" fill="${ink.paper}"/>`,
    text(0, -20, app.data.title, 'font-size="22" font-weight="600"'),
    ...["a", "b"].map((side) =>
      text(app.panels[side].x, app.panels[side].y - 10, side.toUpperCase(), 'font-size="15" font-weight="600"'),
    ),
    ...["a", "b"].map((side) => figurePanel(app, side, scene, ink)),
    `<g fill="none" stroke-width="1.3" stroke-linecap="round">${scene.arcs.map((one) => figureArc(app, one, ink)).join("")}</g>`,
    ...notes.map(([words, more], k) => text(0, height + 26 + 21 * k, words, more)),
    "</svg>",
  ].join("\n");
}

function download(blob, ending) {
  const link = node("a", { href: URL.createObjectURL(blob), download: `bilrp.${ending}` });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

async function savePng(app) {
  const image = new Image();
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(figure(app))}`;
  await image.decode();
  const canvas = node("canvas", { width: 2 * image.width, height: 2 * image.height });
  canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
  canvas.toBlob((blob) => download(blob, "png"));
}

// ---------------------------------------------------------------- start

async function start(data) {
  const relevance = await decodePairs(data.pairs);
  const { rows, columns } = data.pairs;
  const every = (n) => Array.from({ length: n }, (_, i) => i);
  const unit = fourthMoment(relevance);
  const { score, positive, negative } = data.account;
  const app = buildStage({
    data,
    relevance,
    rows,
    columns,
    unit,
    top: Math.max(1, relevance.reduce((m, r) => Math.max(m, Math.abs(r)), 0) / unit),
    // Shares are of the score; where that is zero (they cancel) of everything that went into it.
    whole: Math.abs(score) > 1e-9 * (positive - negative) ? Math.abs(score) : positive - negative,
    shares: {
      a: partners(relevance, rows, columns, "b", every(columns)),
      b: partners(relevance, rows, columns, "a", every(rows)),
    },
    drawing: { ...(data.styles[data.style] ?? data.drawing) },
    shown: { positive: true, negative: true, arcs: true, heat: false },
    zoom: { a: { k: 1 }, b: { k: 1 } },
    least: {},
    pinned: null,
    preview: null,
    peek: null,
    probe: null,
    listed: null,
    anchor: null,
    items: [],
    matches: [],
  });
  buildWords(app);
  buildAccount(app);
  showDrawing(app);
  place(app);
  listMatches(app);
  listenPointer(app);
  listenKeys(app);
  listenControls(app);
  let width = app.stage.clientWidth;
  new ResizeObserver(() => {
    if (app.stage.clientWidth === width) return; // our own change of height
    width = app.stage.clientWidth;
    place(app);
  }).observe(app.stage);
}

const embedded = typeof document === "undefined" ? null : document.getElementById("bilrp-data");
if (embedded) start(JSON.parse(embedded.textContent));

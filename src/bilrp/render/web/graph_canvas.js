// @ts-check
// Draw a network on a canvas: pan, zoom, and choose nodes and edges by pointer or keyboard.

const NODE_RADIUS = 4.5;
const HIT_PIXELS = 8;
const MARGIN_PIXELS = 28;
const MAX_FIT_SCALE = 12;
const MAX_REVEAL_SCALE = 6; // of what was chosen in the list: its neighbours stay in view
const LABEL_HEIGHT = 14;
const MAX_LABELS = 12;

/**
 * @param {HTMLCanvasElement} canvas
 * @param {import("./graph.js").GraphData} data
 * @param {(next: import("./graph.js").Selection) => void} choose
 */
export function drawNetwork(canvas, data, choose) {
  const context = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
  const network = data.nodes.map(({ x, y }) => [x, y]);
  const chronology = data.time ? arrangeByTime(data) : null;
  const direction = new Map(data.sources.map(({ source, copy }) => [edgeKey(source, copy), source]));
  const times = rankTimes(data);
  let places = network;
  let view = { scale: 1, x: 0, y: 0 };
  let marked = { nodes: new Set(), edges: new Set(), any: false };

  /** Show all nodes, or these. */
  function fit(numbers = null) {
    const { width, height } = canvas.getBoundingClientRect();
    const chosen = numbers ? numbers.map((n) => places[n]) : places;
    const xs = chosen.map((place) => place[0]);
    const ys = chosen.map((place) => place[1]);
    const [left, top] = [minimum(xs), minimum(ys)];
    const [wide, high] = [Math.max(1, maximum(xs) - left), Math.max(1, maximum(ys) - top)];
    const most = numbers ? MAX_REVEAL_SCALE : MAX_FIT_SCALE;
    const scale = Math.min((width - 2 * MARGIN_PIXELS) / wide, (height - 2 * MARGIN_PIXELS) / high, most);
    view = { scale, x: (width - wide * scale) / 2 - left * scale, y: (height - high * scale) / 2 - top * scale };
    draw();
  }

  /** @param {number[]} place x and y @returns {number[]} pixels of the canvas */
  function toScreen(place) {
    const [x, y] = place;
    return [x * view.scale + view.x, y * view.scale + view.y];
  }

  function draw() {
    const { width, height } = canvas.getBoundingClientRect();
    const ratio = window.devicePixelRatio || 1;
    if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
      canvas.width = Math.round(width * ratio);
      canvas.height = Math.round(height * ratio);
    }
    const style = getComputedStyle(canvas);
    const color = (name) => style.getPropertyValue(name).trim();
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, width, height);
    drawEdges(color("--edge"), marked.any ? 0.25 : 0.8, (n) => !marked.edges.has(n));
    drawEdges(color("--accent"), 1, (n) => marked.edges.has(n));
    places.forEach((place, n) => drawNode(place, n, color));
    drawLabels(color("--ink"), color("--paper"));
    if (places === chronology) drawYears(color("--soft"), height);
  }

  function drawEdges(stroke, opacity, isShown) {
    context.strokeStyle = stroke;
    context.fillStyle = stroke;
    context.globalAlpha = opacity;
    context.lineWidth = stroke && opacity === 1 ? 2.5 : 1.2;
    context.beginPath();
    data.edges.forEach(({ a, b }, n) => {
      if (!isShown(n)) return;
      const [from, to] = [toScreen(places[a]), toScreen(places[b])];
      context.moveTo(from[0], from[1]);
      context.lineTo(to[0], to[1]);
    });
    context.stroke();
    if (view.scale > 0.8) {
      data.edges.forEach(({ a, b }, n) => {
        const source = direction.get(edgeKey(a, b));
        if (isShown(n) && source !== undefined) drawArrow(places[source], places[source === a ? b : a]);
      });
    }
    context.globalAlpha = 1;
  }

  function drawArrow(from, to) {
    const [start, end] = [toScreen(from), toScreen(to)];
    const angle = Math.atan2(end[1] - start[1], end[0] - start[0]);
    const [x, y] = [end[0] - Math.cos(angle) * (NODE_RADIUS + 2), end[1] - Math.sin(angle) * (NODE_RADIUS + 2)];
    context.beginPath();
    context.moveTo(x, y);
    for (const turn of [-2.7, 2.7]) context.lineTo(x + 7 * Math.cos(angle + turn), y + 7 * Math.sin(angle + turn));
    context.fill();
  }

  function drawNode(place, n, color) {
    const [x, y] = toScreen(place);
    const isMarked = marked.nodes.has(n);
    context.globalAlpha = marked.any && !isMarked ? 0.35 : 1;
    context.beginPath();
    context.arc(x, y, isMarked ? NODE_RADIUS + 2 : NODE_RADIUS, 0, 2 * Math.PI);
    context.fillStyle = isMarked ? color("--accent") : color(`--age${times[n]}`);
    context.fill();
    context.globalAlpha = 1;
  }

  /** The names of chosen nodes, where they do not cover each other. */
  function drawLabels(ink, paper) {
    const drawn = [];
    context.font = "12px system-ui, sans-serif";
    context.lineWidth = 3;
    for (const n of [...marked.nodes].slice(0, MAX_LABELS)) {
      const [x, y] = toScreen(places[n]);
      const name = data.nodes[n].name.slice(0, 28);
      const wide = context.measureText(name).width;
      if (drawn.some((other) => Math.abs(other.y - y) < LABEL_HEIGHT && Math.abs(other.x - x) < Math.max(other.wide, wide))) continue;
      drawn.push({ x, y, wide });
      const left = x + 9 + wide > canvas.clientWidth ? x - 9 - wide : x + 9;
      context.strokeStyle = paper;
      context.strokeText(name, left, y + 4);
      context.fillStyle = ink;
      context.fillText(name, left, y + 4);
    }
  }

  function drawYears(fill, height) {
    const shown = new Map();
    data.nodes.forEach(({ time }, n) => time && shown.set(time, toScreen(places[n])[0]));
    context.fillStyle = fill;
    context.font = "12px system-ui, sans-serif";
    context.textAlign = "center";
    for (const [time, x] of shown) context.fillText(time, x, height - 8);
    context.textAlign = "start";
  }

  /** @returns {import("./graph.js").Selection} */
  function findAt(x, y) {
    const distances = places.map((place) => Math.hypot(toScreen(place)[0] - x, toScreen(place)[1] - y));
    const nearest = distances.indexOf(minimum(distances));
    if (distances[nearest] <= HIT_PIXELS) return { kind: "node", number: nearest };
    const gaps = data.edges.map(({ a, b }) => distanceToSegment([x, y], toScreen(places[a]), toScreen(places[b])));
    const edge = gaps.indexOf(minimum(gaps));
    return gaps[edge] <= HIT_PIXELS ? { kind: "edge", number: edge } : { kind: "none" };
  }

  function zoom(factor, x, y) {
    const scale = Math.min(60, Math.max(0.02, view.scale * factor));
    const change = scale / view.scale;
    view = { scale, x: x - (x - view.x) * change, y: y - (y - view.y) * change };
    draw();
  }

  followPointer(canvas, {
    move: (dx, dy) => {
      view = { ...view, x: view.x + dx, y: view.y + dy };
      draw();
    },
    zoom,
    tap: (x, y) => choose(findAt(x, y)),
    hover: (x, y) => canvas.classList.toggle("over", findAt(x, y).kind !== "none"),
  });
  canvas.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: [40, 0], ArrowRight: [-40, 0], ArrowUp: [0, 40], ArrowDown: [0, -40] }[event.key];
    const { width, height } = canvas.getBoundingClientRect();
    if (step) view = { ...view, x: view.x + step[0], y: view.y + step[1] };
    else if (event.key === "+" || event.key === "=") return zoom(1.4, width / 2, height / 2);
    else if (event.key === "-") return zoom(1 / 1.4, width / 2, height / 2);
    else return;
    event.preventDefault();
    draw();
  });
  new ResizeObserver(() => fit()).observe(canvas);
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);

  return {
    fit: () => fit(),
    /** @param {boolean} byTime */
    arrange(byTime) {
      places = byTime && chronology ? chronology : network;
      fit();
    },
    /**
     * @param {import("./graph.js").Selection} selection
     * @param {boolean} reveal
     */
    select(selection, reveal) {
      marked = markSelection(data, selection);
      if (reveal) fit(marked.nodes.size ? [...marked.nodes] : null);
      else draw();
    },
  };
}

function edgeKey(a, b) {
  return `${Math.min(a, b)} ${Math.max(a, b)}`;
}

/** Spreading an array of ten thousand numbers into Math.min is slow and may overflow the stack. */
function minimum(values) {
  return values.reduce((least, value) => Math.min(least, value), Infinity);
}

function maximum(values) {
  return values.reduce((most, value) => Math.max(most, value), -Infinity);
}

/** The nodes and edges that belong to what was chosen. */
function markSelection(data, selection) {
  const nodes = new Set();
  const edges = new Set();
  if (selection.kind === "edge") {
    edges.add(selection.number);
    nodes.add(data.edges[selection.number].a).add(data.edges[selection.number].b);
  } else if (selection.kind === "node") {
    nodes.add(selection.number);
    data.edges.forEach(({ a, b }, n) => (a === selection.number || b === selection.number) && edges.add(n));
  } else if (selection.kind === "part") {
    for (const { node: carrier } of data.parts[selection.number].carriers) nodes.add(carrier);
    data.edges.forEach(({ a, b }, n) => nodes.has(a) && nodes.has(b) && edges.add(n));
  }
  return { nodes, edges, any: selection.kind !== "none" };
}

/** The age of each node's time, 0 (oldest) to 4; 2 without times. */
function rankTimes(data) {
  const known = sortTimes(data);
  return data.nodes.map(({ time }) => {
    const rank = known.indexOf(time);
    return rank < 0 || known.length < 2 ? 2 : Math.round((4 * rank) / (known.length - 1));
  });
}

function sortTimes(data) {
  const times = [...new Set(data.nodes.map(({ time }) => time))].filter((time) => time !== "");
  const isNumber = times.every((time) => Number.isFinite(Number(time)));
  return times.sort((a, b) => (isNumber ? Number(a) - Number(b) : a < b ? -1 : 1));
}

/** Places by time from left to right; items that are joined stay in neighbouring rows. */
function arrangeByTime(data) {
  const times = sortTimes(data);
  const neighbours = data.nodes.map(() => []);
  for (const { a, b } of data.edges) {
    neighbours[a].push(b);
    neighbours[b].push(a);
  }
  const places = data.nodes.map(() => null);
  let row = 0;
  data.nodes.forEach((_, start) => {
    if (places[start]) return;
    const used = new Map();
    const frontier = [start];
    places[start] = [0, 0];
    while (frontier.length) {
      const n = /** @type {number} */ (frontier.pop());
      const column = times.indexOf(data.nodes[n].time);
      const inner = used.get(column) ?? 0;
      used.set(column, inner + 1);
      places[n] = [column * 40, row + inner];
      for (const next of neighbours[n]) {
        if (places[next]) continue;
        places[next] = [0, 0];
        frontier.push(next);
      }
    }
    row += Math.max(...used.values()) + 0.6;
  });
  const height = Math.max(row, 1);
  const scale = Math.max(1, (times.length * 40 * 0.7) / height);
  return places.map(([x, y]) => [x * Math.max(1, height / (times.length * 55)), y * scale]);
}

/** @param {number[]} point @param {number[]} from @param {number[]} to */
function distanceToSegment(point, from, to) {
  const [x, y] = point;
  const [x0, y0] = from;
  const [x1, y1] = to;
  const length = (x1 - x0) ** 2 + (y1 - y0) ** 2;
  const t = length ? Math.min(1, Math.max(0, ((x - x0) * (x1 - x0) + (y - y0) * (y1 - y0)) / length)) : 0;
  return Math.hypot(x - x0 - t * (x1 - x0), y - y0 - t * (y1 - y0));
}

/** Pan with one pointer, zoom with two or the wheel, and tell a tap from a drag. */
function followPointer(canvas, { move, zoom, tap, hover }) {
  const pointers = new Map();
  let travelled = 0;
  const inside = (event) => {
    const box = canvas.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  };
  canvas.addEventListener("pointerdown", (event) => {
    canvas.setPointerCapture(event.pointerId);
    pointers.set(event.pointerId, inside(event));
    travelled = 0;
  });
  canvas.addEventListener("pointermove", (event) => {
    const here = inside(event);
    const before = pointers.get(event.pointerId);
    if (!before) return hover(here[0], here[1]);
    const others = [...pointers.entries()].filter(([id]) => id !== event.pointerId);
    travelled += Math.hypot(here[0] - before[0], here[1] - before[1]);
    pointers.set(event.pointerId, here);
    if (!others.length) return move(here[0] - before[0], here[1] - before[1]);
    const other = others[0][1];
    const gap = (place) => Math.hypot(place[0] - other[0], place[1] - other[1]) || 1;
    zoom(gap(here) / gap(before), (here[0] + other[0]) / 2, (here[1] + other[1]) / 2);
  });
  canvas.addEventListener("pointerup", (event) => {
    const place = inside(event);
    pointers.delete(event.pointerId);
    if (travelled < 6) tap(place[0], place[1]);
  });
  canvas.addEventListener("pointercancel", (event) => pointers.delete(event.pointerId));
  canvas.addEventListener(
    "wheel",
    (event) => {
      event.preventDefault();
      const [x, y] = inside(event);
      zoom(Math.exp(-event.deltaY / 400), x, y);
    },
    { passive: false },
  );
}

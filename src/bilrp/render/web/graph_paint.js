// @ts-check
// Paint a network: edges as lines or, past other columns, as curves; nodes; names where they do not cover each other.

const NODE_RADIUS = 4.5;
const LABEL_HEIGHT = 17;
const MAX_LABELS = 30; // as many names are read at once
const MAX_NAME_CHARACTERS = 28;
const CURVE_STEPS = 24;
const CURVE_FRACTION = 0.16; // of the length of an edge past other columns: how far its middle is from the straight line
const MIN_ARROW_SCALE = 0.8;

/**
 * @typedef {{ a: number, b: number, source: number | null, isCurved: boolean }} Line
 * @typedef {{ places: number[][], lines: Line[], names: string[], ages: number[], columns: Map<string, number> | null,
 *   marked: { nodes: Set<number>, edges: Set<number>, any: boolean }, hasSources: boolean }} Picture
 */

/**
 * Return the points of an edge on the screen, from a to b.
 * @param {Line} line
 * @param {(n: number) => number[]} toScreen
 */
export function tracePath({ a, b, isCurved }, toScreen) {
  const [from, to] = [toScreen(a), toScreen(b)];
  if (!isCurved) return [from, to];
  const [dx, dy] = [to[0] - from[0], to[1] - from[1]];
  const side = dx < 0 ? 1 : -1; // above the straight line, from either end
  const middle = [(from[0] + to[0]) / 2 - 2 * CURVE_FRACTION * side * dy, (from[1] + to[1]) / 2 + 2 * CURVE_FRACTION * side * dx];
  return Array.from({ length: CURVE_STEPS + 1 }, (_, k) => {
    const t = k / CURVE_STEPS;
    return [0, 1].map((d) => (1 - t) ** 2 * from[d] + 2 * t * (1 - t) * middle[d] + t ** 2 * to[d]);
  });
}

/**
 * @param {CanvasRenderingContext2D} context
 * @param {Picture} picture
 * @param {{ width: number, height: number, scale: number, toScreen: (n: number) => number[], color: (name: string) => string }} view
 */
export function paintNetwork(context, picture, view) {
  const { marked } = picture;
  context.clearRect(0, 0, view.width, view.height);
  paintEdges(
    context,
    picture,
    view,
    { stroke: view.color("--edge"), opacity: marked.any ? (picture.columns ? 0.1 : 0.25) : 0.8, width: 1.2 },
    (n) => !marked.edges.has(n),
  );
  paintEdges(context, picture, view, { stroke: view.color("--accent"), opacity: 1, width: 2.5 }, (n) => marked.edges.has(n));
  picture.places.forEach((_, n) => paintNode(context, picture, view, n));
  paintNames(context, picture, view);
  if (picture.columns) paintTimes(context, picture.columns, view);
}

function paintEdges(context, { lines, hasSources }, view, { stroke, opacity, width }, isShown) {
  Object.assign(context, { strokeStyle: stroke, fillStyle: stroke, globalAlpha: opacity, lineWidth: width });
  for (const isDirect of [true, false]) {
    context.setLineDash(isDirect || !hasSources ? [] : [3, 4]); // dashed: in common, but not copied from it
    context.beginPath();
    lines.forEach((line, n) => {
      if (isShown(n) && (line.source !== null) === isDirect) {
        tracePath(line, view.toScreen).forEach(([x, y], k) => (k ? context.lineTo(x, y) : context.moveTo(x, y)));
      }
    });
    context.stroke();
  }
  context.setLineDash([]);
  if (view.scale > MIN_ARROW_SCALE) {
    lines.forEach((line, n) => {
      if (!isShown(n) || line.source === null) return;
      const points = tracePath(line, view.toScreen);
      paintArrow(context, line.source === line.a ? points : points.reverse());
    });
  }
  context.globalAlpha = 1;
}

/** An arrow at the end of a path. */
function paintArrow(context, points) {
  const [start, end] = points.slice(-2);
  const angle = Math.atan2(end[1] - start[1], end[0] - start[0]);
  const [x, y] = [end[0] - Math.cos(angle) * (NODE_RADIUS + 2), end[1] - Math.sin(angle) * (NODE_RADIUS + 2)];
  context.beginPath();
  context.moveTo(x, y);
  for (const turn of [-2.7, 2.7]) context.lineTo(x + 8 * Math.cos(angle + turn), y + 8 * Math.sin(angle + turn));
  context.fill();
}

function paintNode(context, { marked, ages }, { toScreen, color }, n) {
  const [x, y] = toScreen(n);
  const isMarked = marked.nodes.has(n);
  context.globalAlpha = marked.any && !isMarked ? 0.35 : 1;
  context.beginPath();
  context.arc(x, y, isMarked ? NODE_RADIUS + 2 : NODE_RADIUS, 0, 2 * Math.PI);
  context.fillStyle = isMarked ? color("--accent") : color(`--age${ages[n]}`);
  context.fill();
  context.globalAlpha = 1;
}

/** The names of chosen nodes, and of all that are in view if these are few; each where it covers no other. */
function paintNames(context, { places, names, marked, columns }, { width, height, toScreen, color }) {
  const inView = places
    .map((_, n) => n)
    .filter((n) => {
      const [x, y] = toScreen(n);
      return x >= 0 && y >= 0 && x <= width && y <= height;
    });
  const others = inView.length <= MAX_LABELS ? inView.filter((n) => !marked.nodes.has(n)) : [];
  const drawn = [];
  context.font = "12px system-ui, sans-serif";
  for (const n of [...[...marked.nodes].slice(0, MAX_LABELS), ...others]) {
    const [x, y] = toScreen(n);
    const name = names[n].length > MAX_NAME_CHARACTERS ? `${names[n].slice(0, MAX_NAME_CHARACTERS - 1)}…` : names[n];
    const wide = context.measureText(name).width + 6;
    const top = columns ? y + NODE_RADIUS + 4 : y - LABEL_HEIGHT / 2;
    const wanted = columns ? x - wide / 2 : x + 8 + wide > width ? x - 8 - wide : x + 8;
    const left = Math.max(0, Math.min(wanted, width - wide));
    const covers = (other) => Math.abs(other.top - top) < LABEL_HEIGHT && other.left < left + wide && left < other.left + other.wide;
    if (drawn.some(covers)) continue;
    drawn.push({ left, top, wide });
    context.globalAlpha = 0.85;
    context.fillStyle = color("--paper");
    context.fillRect(left, top, wide, LABEL_HEIGHT);
    context.globalAlpha = marked.any && !marked.nodes.has(n) ? 0.6 : 1;
    context.fillStyle = color("--ink");
    context.fillText(name, left + 3, top + 12.5);
    context.globalAlpha = 1;
  }
}

/** The time below each column, where there is room for it. */
function paintTimes(context, columns, { height, color }) {
  Object.assign(context, { fillStyle: color("--ink"), font: "600 13px system-ui, sans-serif", textAlign: "center" });
  let end = -Infinity;
  for (const [time, x] of [...columns].sort((a, b) => a[1] - b[1])) {
    const text = time || "undated";
    const half = context.measureText(text).width / 2 + 4;
    if (x - half < end) continue;
    context.fillText(text, x, height - 8);
    end = x + half;
  }
  context.textAlign = "start";
}

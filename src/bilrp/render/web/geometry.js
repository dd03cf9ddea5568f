// Where things are: outlines of regions, the two sides on a stage, zoom, arcs. No document needed.

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
export function union(shape, chosen) {
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
export function view({ shape }, { k, x, y }) {
  const w = shape.width / k;
  const h = shape.height / k;
  const keep = (centre, size, all) => Math.min(Math.max(centre - size / 2, 0), all - size);
  return [keep(x ?? shape.width / 2, w, shape.width), keep(y ?? shape.height / 2, h, shape.height), w, h];
}

/** From a side's own units to the stage; what is out of sight sticks to the frame. */
export function toStage(panel, zoom, [x, y]) {
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
export function within(centres, [x0, y0], [x1, y1]) {
  const inside = (t, s, e) => t >= Math.min(s, e) - 1e-9 && t <= Math.max(s, e) + 1e-9;
  return centres.flatMap(([x, y], i) => (inside(x, x0, x1) && inside(y, y0, y1) ? [i] : []));
}

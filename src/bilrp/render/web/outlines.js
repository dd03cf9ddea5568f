// @ts-check
// Trace outlines of labelled pixels. Does not use the DOM.

/** Which region each pixel belongs to; -1 for none. */
export function labelMap({ runs, boxes, width, height }) {
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

const hundredths = (x) => Math.round(100 * x) / 100;

/** A closed path through corners; `smooth` rounds each by half a cell, so that a staircase becomes a slope. */
function closedPath(corners, to, smooth) {
  const spell = (point) => point.map(hundredths).join(" ");
  const drawn = corners.map(to);
  if (!smooth) return `M${drawn.map(spell).join("L")}Z`;
  // half a cell from corner k towards corner l; in the drawing, because `to` maps only whole corners
  const near = (k, l) => {
    const [[i, j], [m, n], [x, y], [u, v]] = [corners[k], corners[l], drawn[k], drawn[l]];
    const part = 0.5 / Math.max(Math.abs(m - i), Math.abs(n - j));
    return spell([x + part * (u - x), y + part * (v - y)]);
  };
  const count = corners.length;
  const turns = drawn.map((corner, k) => `${near(k, (k + count - 1) % count)}Q${spell(corner)} ${near(k, (k + 1) % count)}`);
  return `M${turns.join("L")}Z`;
}

/**
 * SVG outlines of regions of any shape, holes included (fill rule: even-odd); `to` maps corners to the drawing, and `smooth`
 * rounds the corners.
 */
export function outlines(places, map, count, to = (point) => point, smooth = false) {
  const w = places.width + 1;
  const point = (corner) => [corner % w, Math.floor(corner / w)];
  return borderEdges(places, map, count).map((ends) => {
    let path = "";
    for (const start of [...ends.keys()])
      while (ends.get(start)?.length) {
        let here = start;
        let way = 0;
        let first = 0;
        const corners = [];
        do {
          const next = ends.get(here).pop();
          if (next - here !== way && way) corners.push(point(here));
          way = next - here;
          first ||= way;
          here = next;
        } while (here !== start);
        if (way !== first) corners.push(point(start));
        path += closedPath(corners, to, smooth);
      }
    return path;
  });
}

/** A center inside each region: the pixel nearest to the mean of its pixels. */
export function maskCentres(places, map, count) {
  const of = Array.from({ length: count }, () => []);
  map.forEach((label, k) => label >= 0 && of[label].push([(k % places.width) + 0.5, Math.floor(k / places.width) + 0.5]));
  return of.map((points) => {
    if (!points.length) return [0, 0];
    const mean = [0, 1].map((d) => points.reduce((s, p) => s + p[d], 0) / points.length);
    const far = (p) => (p[0] - mean[0]) ** 2 + (p[1] - mean[1]) ** 2;
    return points.reduce((best, p) => (far(p) < far(best) ? p : best));
  });
}

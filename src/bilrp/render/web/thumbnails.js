// @ts-check
// Thumbnails of regions: a part of the image with their outline, or the words.

import { node } from "./dom.js";
import { boxAround, union } from "./geometry.js";
import { shortName } from "./words.js";

/** Maximum size in regions; of a larger selection the strongest part is shown. */
const across = (shape) => (shape.boxes.length > 400 ? 2.4 : 16);

/** The part of a side around some regions, of that aspect ratio: [x, y, width, height]. */
function windowOn(shape, set, [wide, high], margin, best) {
  const [t, l, b, r] = shape.boxes[best];
  const most = across(shape) * Math.max(r - l, b - t);
  const all = boxAround(shape, set);
  const large = all[2] - all[0] > most || all[3] - all[1] > most;
  const around = (from, to, low, high_) => Math.min(Math.max((from + to - most) / 2, low), Math.max(high_ - most, low));
  const [y, x] = [around(t, b, all[0], all[2]), around(l, r, all[1], all[3])];
  const [top, left, bottom, right] = large ? [y, x, Math.min(y + most, all[2]), Math.min(x + most, all[3])] : all;
  const height = Math.max((1 + margin) * (bottom - top), ((1 + margin) * (right - left) * high) / wide);
  const fit = Math.min(height, Math.max(shape.height, (shape.width * high) / wide));
  const size = [(fit * wide) / high, fit];
  const start = (middle, length, from, all) =>
    length > all ? from + (all - length) / 2 : Math.min(Math.max(middle - length / 2, from), from + all - length);
  return [start((left + right) / 2, size[0], shape.x, shape.width), start((top + bottom) / 2, size[1], shape.y, shape.height), ...size];
}

/** A thumbnail of regions; `size` in pixels, `margin` relative to the size of the regions. */
export function thumb(app, side, set, size, margin, best = set[0]) {
  const { shape } = app.layout[side];
  const picture = app.pictures[side];
  if (!picture) return node("span", { class: "chip" }, shortName(app.model.data, side, set));
  const [width, height] = size.map((t) => 2 * t); // sharp on dense screens
  const canvas = node("canvas", { class: "thumb", width, height, "aria-hidden": "true" });
  const [x, y, w] = windowOn(shape, set, size, margin, best);
  const path = new Path2D(union(shape, new Set(set)));
  picture.then((image) => {
    const pen = canvas.getContext("2d");
    const seen = app.model.data[side].view;
    pen.setTransform(width / w, 0, 0, width / w, (-x * width) / w, (-y * width) / w);
    pen.drawImage(image, 0, 0, seen.width, seen.height);
    for (const { colour, line } of [
      { colour: "#000", line: 5 },
      { colour: "#fff", line: 2.6 },
    ]) {
      Object.assign(pen, { strokeStyle: colour, lineWidth: (line * w) / width });
      pen.stroke(path);
    }
  });
  return canvas;
}

// The list beside the account: the strongest pairs, or the partners of what is pinned.

import { onlySigns, OTHER, strongest } from "./data.js";
import { node } from "./dom.js";
import { union } from "./geometry.js";
import { change } from "./paint.js";
import { partnersOf } from "./scene.js";
import { capital, nameOf, nounOf, percent, same } from "./words.js";

const THUMB = 120; // pixels of a thumbnail's side, about twice what it is shown with

/** A square of the picture with a region outlined on it, drawn when the picture is there. */
function drawThumb(picture, [x, y, size], { width, height }, path) {
  const canvas = node("canvas", { class: "thumb", width: THUMB, height: THUMB, "aria-hidden": "true" });
  picture.then((image) => {
    const pen = canvas.getContext("2d");
    const [across, down] = [image.naturalWidth / width, image.naturalHeight / height];
    pen.drawImage(image, x * across, y * down, size * across, size * down, 0, 0, THUMB, THUMB);
    const zoom = THUMB / size;
    pen.setTransform(zoom, 0, 0, zoom, -x * zoom, -y * zoom);
    for (const [colour, line] of [
      ["#000", 5],
      ["#fff", 3],
    ]) {
      Object.assign(pen, { strokeStyle: colour, lineWidth: line / zoom });
      pen.stroke(new Path2D(path));
    }
  });
  return canvas;
}

/** The pairs to list: the strongest of all, or the partners of what is pinned. */
function matchesOf(app) {
  if (app.state.listed) {
    const values = onlySigns(partnersOf(app, app.state.listed), app.state.shown);
    return strongest(values, 12).map((partner) => ({ ...app.state.listed, partner }));
  }
  return strongest(onlySigns(app.model.relevance, app.state.shown), 12).map((pair) => ({
    side: "a",
    set: [Math.floor(pair / app.model.columns)],
    partner: pair % app.model.columns,
  }));
}

function thumb(app, side, set) {
  const { names, places, picture } = app.model.data[side];
  if (!places || !picture)
    return node(
      "span",
      { class: "word" },
      set.length > 1 ? `${set.length} ${nounOf(app.model.data)}s` : names ? names[set[0]] : nameOf(app.model.data, side, set[0]),
    );
  const boxes = set.map((i) => places.boxes[i]);
  const box = [0, 1]
    .map((d) => Math.min(...boxes.map((b) => b[d])))
    .concat([2, 3].map((d) => Math.max(...boxes.map((b) => b[d]))));
  const size = Math.min(places.width, places.height, 2.6 * Math.max(box[2] - box[0], box[3] - box[1]));
  const start = (from, to, all) => Math.min(Math.max((from + to - size) / 2, 0), all - size);
  const [x, y] = [start(box[1], box[3], places.width), start(box[0], box[2], places.height)];
  const path = union(app.layout.panels[side].shape, new Set(set));
  return drawThumb(app.pictures[side], [x, y, size], places, path);
}

export function listMatches(app) {
  app.matches = matchesOf(app);
  app.dom.listed.textContent = app.state.listed ? "Partners of what is pinned" : "Strongest pairs";
  app.dom.items = app.matches.map((match) => {
    const value = partnersOf(app, match)[match.partner];
    const sets = { [match.side]: match.set, [OTHER[match.side]]: [match.partner] };
    const name = (side) =>
      sets[side].length > 1
        ? `${sets[side].length} regions of ${side.toUpperCase()}`
        : nameOf(app.model.data, side, sets[side][0]);
    const label = `${capital(name("a"))} with ${name("b")}: ${percent(value, app.model.whole)} of the score`;
    const el = node(
      "button",
      { type: "button", class: value > 0 ? "positive" : "negative", "aria-label": label, "aria-pressed": "false" },
      thumb(app, "a", sets.a),
      thumb(app, "b", sets.b),
      node("span", { class: "share" }, percent(value, app.model.whole)),
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
      change(app, { pinned: same(app.state.pinned, match) ? null : match, peek: same(app.state.pinned, match) ? null : match }),
    );
    return el;
  });
  app.dom.matches.replaceChildren(...app.dom.items.map((el) => node("li", {}, el)));
}

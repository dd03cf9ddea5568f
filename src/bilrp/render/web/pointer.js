// @ts-check
// Mouse, pen and touch.

import { pin, zoomBy } from "./actions.js";
import { set } from "./dom.js";
import { differenceChoice } from "./findings.js";
import { view, within } from "./geometry.js";
import { change, paint, repaint } from "./paint.js";
import { applyZoom } from "./panels.js";
import { groupAt } from "./scene.js";
import { same } from "./words.js";

/** The region an event happened on. */
export function regionAt(event) {
  const el = event.target.closest?.(".region");
  return el ? { side: el.dataset.side, i: Number(el.dataset.i) } : null;
}

/** The match or difference whose ribbon or number an event happened on. */
function findingAt(app, event) {
  const { finding, difference } = event.target.closest?.("[data-finding], [data-difference]")?.dataset ?? {};
  if (finding != null) return { finding: Number(finding) };
  return difference == null ? null : differenceChoice(app.model.differences[Number(difference)]);
}

/** What pointing at a region selects: the match or difference around it; the region itself if that is pinned already. */
function choiceAt(app, { side, i }) {
  const group = groupAt(app, side, i);
  return group && !same(group, app.state.pinned) ? group : { side, set: [i] };
}

/** The position of a pointer in the units of one side. */
function pointIn(app, side, event) {
  const frame = app.dom.svg.getBoundingClientRect();
  const panel = app.layout[side];
  const [vx, vy, vw, vh] = view(panel, app.state.zoom[side]);
  const clamp = (t) => Math.min(Math.max(t, 0), 1);
  const x = clamp((event.clientX - frame.left - panel.x) / panel.w);
  const y = clamp((event.clientY - frame.top - panel.y) / panel.h);
  return [vx + x * vw, vy + y * vh];
}

export function listenPointer(app) {
  const { svg, stage } = app.dom;
  app.drag = null;
  stage.addEventListener("click", ({ target }) => {
    const { zoom, side } = target.closest("[data-zoom]")?.dataset ?? {};
    if (zoom) zoomBy(app, side, Number(zoom));
  });
  svg.addEventListener("pointermove", (event) => {
    if (app.drag) return dragTo(app, app.drag, event);
    const at = regionAt(event);
    return change(app, { probe: at, preview: at ? choiceAt(app, at) : findingAt(app, event) });
  });
  svg.addEventListener("pointerleave", () => app.drag || change(app, { probe: null, preview: null }));
  svg.addEventListener("pointerdown", (event) => press(app, event));
  svg.addEventListener("pointerup", (event) => release(app, event));
  svg.addEventListener("pointercancel", () => dropDrag(app));
  svg.addEventListener(
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

function press(app, event) {
  if (event.button > 1) return;
  const finding = findingAt(app, event);
  const panel = event.target.closest?.(".panel");
  if (finding) pin(app, finding);
  if (finding || !panel) return;
  const { side } = panel.dataset;
  app.drag = {
    side,
    at: regionAt(event),
    start: pointIn(app, side, event),
    x: event.clientX,
    y: event.clientY,
    id: event.pointerId,
    zoom: { ...app.state.zoom[side] },
    pan: event.shiftKey || event.button === 1,
  };
  if (app.drag.pan) event.preventDefault();
}

function release(app, event) {
  const was = dropDrag(app);
  if (!was || was.pan) return;
  if (was.moved) pin(app, was.set.length ? { side: was.side, set: was.set } : null);
  else pin(app, was.at ? choiceAt(app, was.at) : null);
  if (event.pointerType !== "mouse" && app.state.pinned) bringIntoView(app);
}

/** After a touch, scroll the stage and the readout into view. */
function bringIntoView(app) {
  paint(app);
  for (const el of [app.dom.stage, app.dom.readout]) el.scrollIntoView({ block: "nearest" });
}

/** End a drag and hide its rectangle; returns the drag. */
export function dropDrag(app) {
  const was = app.drag;
  app.drag = null;
  if (was) set(app.dom.panels[was.side].band, { display: "none" });
  return was;
}

/** While the button is down: pan (shift) or extend the selection. */
function dragTo(app, drag, event) {
  const { side } = drag;
  if (!drag.moved && Math.hypot(event.clientX - drag.x, event.clientY - drag.y) < 5) return;
  if (!drag.moved) app.dom.svg.setPointerCapture(drag.id);
  drag.moved = true;
  if (drag.pan) {
    const panel = app.layout[side];
    const [vx, vy, vw, vh] = view(panel, drag.zoom);
    app.state.zoom[side] = {
      k: drag.zoom.k,
      x: vx + vw / 2 - ((event.clientX - drag.x) / panel.w) * vw,
      y: vy + vh / 2 - ((event.clientY - drag.y) / panel.h) * vh,
    };
    applyZoom(app, side);
    repaint(app);
    return;
  }
  const end = pointIn(app, side, event);
  const [x, y] = [0, 1].map((d) => Math.min(drag.start[d], end[d]));
  const [width, height] = [0, 1].map((d) => Math.abs(drag.start[d] - end[d]));
  set(app.dom.panels[side].band, { x, y, width, height, display: null });
  drag.set = within(app.layout[side].shape.centres, drag.start, end);
  change(app, { pinned: null, probe: null, preview: drag.set.length ? { side, set: drag.set } : null });
}

// Mouse, pen and finger.

import { pin, zoomBy } from "./actions.js";
import { view, within } from "./geometry.js";
import { change, repaint } from "./paint.js";
import { applyZoom } from "./panels.js";

/** The region an event happened on. */
export function regionAt(event) {
  const el = event.target.closest?.(".region");
  return el ? { side: el.dataset.side, i: Number(el.dataset.i) } : null;
}

/** A pointer's place in the units of one side. */
function pointIn(app, side, event) {
  const frame = app.dom.svg.getBoundingClientRect();
  const panel = app.layout.panels[side];
  const [vx, vy, vw, vh] = view(panel, app.state.zoom[side]);
  const clamp = (t) => Math.min(Math.max(t, 0), 1);
  const x = clamp((event.clientX - frame.left - panel.x) / panel.w);
  const y = clamp((event.clientY - frame.top - panel.y) / panel.h);
  return [vx + x * vw, vy + y * vh];
}

export function listenPointer(app) {
  let drag = null;
  app.dom.stage.addEventListener("click", ({ target }) => {
    const { zoom, side } = target.closest("[data-zoom]")?.dataset ?? {};
    if (zoom) zoomBy(app, side, Number(zoom));
  });
  app.dom.svg.addEventListener("pointermove", (event) => {
    if (drag) return dragTo(app, drag, event);
    const at = regionAt(event);
    return change(app, { probe: at, preview: at && { side: at.side, set: [at.i] } });
  });
  app.dom.svg.addEventListener("pointerleave", () => drag || change(app, { probe: null, preview: null }));
  app.dom.svg.addEventListener("pointerdown", (event) => {
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
      zoom: { ...app.state.zoom[side] },
      pan: event.shiftKey || event.button === 1,
    };
    if (drag.pan) event.preventDefault();
  });
  const end = (event) => {
    const was = drag;
    drag = null;
    if (!was) return;
    app.dom.nodes[was.side].band.setAttribute("hidden", "");
    if (event.type === "pointercancel" || was.pan) return;
    if (was.moved) pin(app, was.set.length ? { side: was.side, set: was.set } : null);
    else pin(app, was.at ? { side: was.at.side, set: [was.at.i] } : null);
  };
  app.dom.svg.addEventListener("pointerup", end);
  app.dom.svg.addEventListener("pointercancel", end);
  app.dom.svg.addEventListener(
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
  if (!drag.moved) app.dom.svg.setPointerCapture(drag.id);
  drag.moved = true;
  if (drag.pan) {
    const panel = app.layout.panels[side];
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
  const { band } = app.dom.nodes[side];
  const box = [0, 1].map((d) => Math.min(drag.start[d], end[d]));
  const size = [0, 1].map((d) => Math.abs(drag.start[d] - end[d]));
  for (const [k, v] of Object.entries({ x: box[0], y: box[1], width: size[0], height: size[1] }))
    band.setAttribute(k, v);
  band.removeAttribute("hidden");
  drag.set = within(app.layout.panels[side].shape.centres, drag.start, end);
  change(app, { pinned: null, probe: null, preview: drag.set.length ? { side, set: drag.set } : null });
}

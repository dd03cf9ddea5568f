// @ts-check
// Actions of pointer and keyboard: zoom, scroll to a region, pin.

import { OTHER, strongest } from "./data.js";
import { view } from "./geometry.js";
import { listAll } from "./matches.js";
import { repaint } from "./paint.js";
import { applyZoom } from "./panels.js";
import { activeOf, partnersOf } from "./scene.js";
import { same } from "./words.js";

/** Multiply the zoom about a point (0 resets it). */
export function zoomBy(app, side, factor, about) {
  const panel = app.layout[side];
  const zoom = app.state.zoom[side];
  const [vx, vy, vw, vh] = view(panel, zoom);
  const k = factor ? Math.min(12, Math.max(1, zoom.k * factor)) : 1;
  const [px, py] = about ?? (zoom.k > 1 ? null : focusPoint(app, side)) ?? [vx + vw / 2, vy + vh / 2];
  const shrink = panel.shape.width / k / vw;
  app.state.zoom[side] = { k, x: px + (vx + vw / 2 - px) * shrink, y: py + (vy + vh / 2 - py) * shrink };
  if (!about && k > 1 && factor > 1 && shrink < 1) Object.assign(app.state.zoom[side], { x: px, y: py });
  applyZoom(app, side);
  repaint(app);
}

/** The point that a zoom without a pointer centers: the strongest region shown on that side. */
function focusPoint(app, side) {
  const active = activeOf(app);
  if (!active) return null;
  const { centres } = app.layout[side].shape;
  if (active.difference != null) return active.side === side ? centres[active.set[0]] : null;
  if (active.finding != null) return centres[app.model.findings[active.finding].best[side]];
  if (active.side === side) return centres[active.set[0]];
  return centres[active.partner ?? strongest(partnersOf(app, active), 1)[0]] ?? null;
}

/** Scroll to a region that the keyboard reached. */
export function reveal(app, side, i) {
  const { shape } = app.layout[side];
  const [x, y, w, h] = view(app.layout[side], app.state.zoom[side]);
  const [top, left, bottom, right] = shape.boxes[i];
  if (left >= x && right <= x + w && top >= y && bottom <= y + h) return;
  const [cx, cy] = shape.centres[i];
  Object.assign(app.state.zoom[side], { x: cx, y: cy });
  applyZoom(app, side);
}

/** Pin a selection, or unpin it if it is pinned; the list then shows its partners. */
export function pin(app, choice) {
  const { state } = app;
  const free = !choice || same(state.pinned, choice);
  const listed = free || choice.finding != null || choice.difference != null ? null : choice;
  Object.assign(state, { pinned: free ? null : choice, listed, peek: null });
  if (!choice) state.preview = null;
  if (listed) tabStop(app, OTHER[choice.side], strongest(partnersOf(app, choice), 1)[0] ?? 0);
  listAll(app);
  repaint(app);
}

/** Make one region of a side reachable by Tab; arrow keys reach the others. */
export function tabStop(app, side, i) {
  const { paths } = app.dom.panels[side];
  for (const path of paths) if (path.tabIndex === 0) path.setAttribute("tabindex", -1);
  paths[i].setAttribute("tabindex", 0);
}

// @ts-check
// Keyboard: arrows move, Shift extends the selection, Enter pins, Escape clears, + − 0 zoom.

import { pin, reveal, tabStop, zoomBy } from "./actions.js";
import { neighbour, within } from "./geometry.js";
import { change } from "./paint.js";
import { dropDrag, regionAt } from "./pointer.js";
import { same } from "./words.js";

const ARROWS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };

export function listenKeys(app) {
  // On the stage, because an <svg> that listens for focus becomes a Tab stop itself.
  app.dom.stage.addEventListener("focusin", (event) => {
    const at = regionAt(event);
    if (!at) return;
    tabStop(app, at.side, at.i);
    app.clicked = event.target.matches(":focus-visible") ? null : event.target;
    if (app.clicked) return; // a click pins by itself
    reveal(app, at.side, at.i);
    change(app, { probe: at, preview: { side: at.side, set: [at.i] } });
  });
  app.dom.stage.addEventListener("focusout", () => change(app, { probe: null, preview: null }));
  app.dom.svg.addEventListener("keydown", (event) => {
    const at = regionAt(event);
    if (!at || event.ctrlKey || event.metaKey || event.altKey) return;
    if (regionKey(app, event, at)) event.preventDefault();
  });
  document.addEventListener(
    "keydown",
    (event) => {
      const free = event.target === document.body; // nothing has the focus: all pages of the document react
      if (event.key !== "Escape" || !(free || event.composedPath().includes(app.dom.page))) return;
      dropDrag(app);
      app.clicked?.blur(); // else the key press would show a focus ring around the clicked region
      pin(app, null);
    },
    { signal: app.signal },
  );
}

function regionKey(app, event, { side, i }) {
  const { paths } = app.dom.panels[side];
  const go = (to) => paths[to].focus();
  if (event.key in ARROWS) {
    const to = neighbour(app.layout[side].shape.centres, i, ARROWS[event.key]);
    if (!event.shiftKey) app.state.anchor = null;
    else app.state.anchor ??= i;
    go(to);
    if (event.shiftKey) extendSelection(app, side, to);
  } else if (event.key === "Home") go(0);
  else if (event.key === "End") go(paths.length - 1);
  else if (event.key === "Enter" || event.key === " ")
    pin(app, app.state.anchor != null && app.state.pinned?.side === side ? null : { side, set: [i] });
  else if (event.key === "+" || event.key === "=") zoomBy(app, side, 1.5);
  else if (event.key === "-") zoomBy(app, side, 1 / 1.5);
  else if (event.key === "0") zoomBy(app, side, 0);
  else return false;
  return true;
}

/** Shift and arrows: pin all regions in the rectangle from the anchor to here. */
function extendSelection(app, side, to) {
  const { centres } = app.layout[side].shape;
  const set = within(centres, centres[app.state.anchor], centres[to]);
  if (!same(app.state.pinned, { side, set })) pin(app, { side, set });
}

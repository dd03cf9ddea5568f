// @ts-check
// The style of the stage. Colours are attributes of its elements, so that a saved figure has them too.

export const STAGE_STYLE = /* css */ `
figure {
  scroll-margin: 6px;
  display: flex;
  flex-direction: column;
}
/* above the stage, but after it for the keyboard: Tab reaches a region first */
.switch {
  order: -1;
}
.stage {
  position: relative;
}
.scene {
  position: absolute;
  left: 0;
  top: 0;
  display: block;
  font-family: var(--sans);
}
.caption {
  position: absolute;
  display: flex;
  justify-content: space-between;
  align-items: center;
  height: 32px;
}
.caption b {
  font: 500 18px/1 var(--serif);
}
.caption .name {
  flex: 1;
  min-width: 0;
  margin: 0 10px;
  overflow: hidden;
  text-overflow: ellipsis;
  white-space: nowrap;
  color: var(--soft);
  font-size: 13px;
  text-shadow: 0 0 2px var(--paper), 0 0 3px var(--paper), 0 0 4px var(--paper); /* where a ribbon passes */
}
.zoom {
  display: inline-flex;
}
.zoom button {
  border: 0;
  background: none;
  min-width: 26px;
  padding: 4px 7px;
  color: var(--soft);
  cursor: pointer;
  font-size: 13px;
  border-radius: 4px;
}
.zoom button:hover {
  color: var(--ink);
  background: var(--faint);
}
.zoom button:nth-child(2) {
  min-width: 54px;
}

.panel {
  overflow: hidden;
  touch-action: pan-y pinch-zoom;
  cursor: crosshair;
  user-select: none;
}
.panel.words {
  overflow: visible;
  cursor: pointer;
}
.region {
  pointer-events: all;
  outline: none;
}
.region:focus-visible {
  stroke: #fff;
  stroke-width: 3.5;
  vector-effect: non-scaling-stroke;
  filter: drop-shadow(0 0 0.8px #000) drop-shadow(0 0 0.8px #000);
}
.words .region:focus-visible {
  stroke: var(--focus);
  stroke-width: 3;
  filter: none;
}
.band {
  stroke: #fff;
  stroke-width: 1.5;
  stroke-dasharray: 4 3;
  mix-blend-mode: difference;
}
.arcs,
.ribbons {
  pointer-events: none;
}
.hits path {
  pointer-events: stroke;
  cursor: pointer;
}
.badges g {
  cursor: pointer;
}
@media (prefers-reduced-motion: no-preference) {
  .region,
  .veil {
    transition: fill-opacity 0.12s ease-out;
  }
}

figcaption {
  display: flex;
  flex-wrap: wrap;
  gap: 4px 40px;
  align-items: start;
  justify-content: space-between;
  padding: 14px 0 4px;
}
.sentence {
  display: grid;
  grid-template-columns: minmax(0, 1fr);
  flex: 1 1 320px;
}
.readout,
.reserve,
.reserve p {
  grid-area: 1 / 1;
  text-wrap: pretty;
  overflow-wrap: anywhere;
}
/* The longest sentences, invisible: they reserve the height, so that nothing moves on hover. */
.reserve {
  display: grid;
  grid-template-columns: minmax(0, 1fr);
  visibility: hidden;
}
.legend {
  flex: none;
  font-family: var(--sans);
}
`;

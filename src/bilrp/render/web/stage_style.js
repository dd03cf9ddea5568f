// How the stage looks: pictures, words, regions and what is drawn on them.

export const STAGE_STYLE = /* css */ `
.stage {
  position: relative;
  min-height: 200px;
}
.scene,
.stage canvas {
  position: absolute;
  inset: 0;
  width: 100%;
  height: 100%;
  display: block;
}
.stage canvas {
  pointer-events: none;
}
.caption {
  position: absolute;
  z-index: 1;
  display: flex;
  justify-content: space-between;
  align-items: center;
  height: 30px;
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
}
.zoom {
  display: inline-flex;
  opacity: 0.75;
}
.zoom:hover,
.zoom:focus-within {
  opacity: 1;
}
.zoom button {
  border: 0;
  background: none;
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
.panel.placed .veil {
  fill: var(--paper);
  fill-opacity: 0;
  pointer-events: none;
}
.panel.placed.quiet .veil {
  fill-opacity: 0.3;
}
.panel.quiet image {
  filter: grayscale(0.65);
}
.panel.placed.lit .veil {
  fill-opacity: var(--veil);
}
.panel.words .veil {
  fill: none;
}
.panel.lit image {
  filter: grayscale(1);
}
.region {
  fill: transparent;
  fill-rule: evenodd;
  stroke: none;
  vector-effect: non-scaling-stroke;
  pointer-events: all;
  outline: none;
}
.region.positive {
  fill: color-mix(in srgb, var(--positive) 88%, transparent);
}
.region.negative {
  fill: color-mix(in srgb, var(--negative) 88%, transparent);
}
[data-palette="safe"] [data-side="a"] .region.negative {
  fill: url(#hatch-a);
}
[data-palette="safe"] [data-side="b"] .region.negative {
  fill: url(#hatch-b);
}
.hatch-ground {
  fill: color-mix(in srgb, var(--negative) 45%, transparent);
}
.hatch-line {
  stroke: var(--negative);
  stroke-width: 1.6;
}
.words .region {
  stroke: var(--rule);
  stroke-width: 1;
}
.outline {
  fill: none;
  stroke: #fff;
  stroke-width: 2.5;
  vector-effect: non-scaling-stroke;
  pointer-events: none;
  filter: drop-shadow(0 0 0.6px #000) drop-shadow(0 0 0.6px #000);
}
.words .outline {
  stroke: var(--ink);
  stroke-width: 2;
  filter: none;
}
.region:focus-visible {
  stroke: #fff;
  stroke-width: 3.5;
  filter: drop-shadow(0 0 0.8px #000) drop-shadow(0 0 0.8px #000);
}
.words .region:focus-visible {
  stroke: var(--focus);
  stroke-width: 3;
  filter: none;
}
.panel text {
  font: 16px var(--sans);
  fill: var(--ink);
  pointer-events: none;
}
.band {
  fill: var(--ink);
  fill-opacity: 0.08;
  stroke: var(--ink);
  stroke-width: 1;
  stroke-dasharray: 4 3;
  vector-effect: non-scaling-stroke;
  pointer-events: none;
}
.band[hidden] {
  display: none;
}
@media (prefers-reduced-motion: no-preference) {
  .region,
  .veil {
    transition: fill-opacity 0.12s ease-out;
  }
  .panel image {
    transition: filter 0.12s ease-out;
  }
}
`;

:root {
  --paper: #fdfcfa;
  --ink: #1c1b1a;
  --soft: #66625c;
  --rule: #dcd8d1;
  --faint: #f3f0eb;
  --focus: #111;
  --positive: #d7191c;
  --negative: #2166d1;
  --unattributed: #a8a29a;
  --veil: 0.62;
  --sans: "Inter", "Helvetica Neue", "Segoe UI", system-ui, sans-serif;
  --serif: "Iowan Old Style", "Charter", "Source Serif 4", "Georgia", "DejaVu Serif", serif;
  color-scheme: light;
}
:root[data-palette="safe"] {
  --positive: #d55e00;
  --negative: #0072b2;
}
:root[data-theme="dark"] {
  --paper: #161514;
  --ink: #efece7;
  --soft: #a39d94;
  --rule: #383532;
  --faint: #211f1d;
  --focus: #fff;
  --positive: #ff5468;
  --negative: #5a9bff;
  --unattributed: #7b756d;
  --veil: 0.66;
  color-scheme: dark;
}
:root[data-theme="dark"][data-palette="safe"] {
  --positive: #ff8a2a;
  --negative: #4db3ff;
}
@media (prefers-color-scheme: dark) {
  :root[data-theme="auto"] {
    --paper: #161514;
    --ink: #efece7;
    --soft: #a39d94;
    --rule: #383532;
    --faint: #211f1d;
    --focus: #fff;
    --positive: #ff5468;
    --negative: #5a9bff;
    --unattributed: #7b756d;
    --veil: 0.66;
    color-scheme: dark;
  }
  :root[data-theme="auto"][data-palette="safe"] {
    --positive: #ff8a2a;
    --negative: #4db3ff;
  }
}

* {
  box-sizing: border-box;
}
html {
  background: var(--paper);
  color: var(--ink);
  -webkit-text-size-adjust: 100%;
}
body {
  margin: 0;
  font: 15px/1.5 var(--sans);
  font-variant-numeric: tabular-nums;
}
main {
  max-width: 1120px;
  margin: 0 auto;
  padding: clamp(20px, 4vw, 52px) clamp(16px, 4vw, 40px) 40px;
}
h1,
h2,
p,
figure,
ol,
dl,
dd,
fieldset {
  margin: 0;
  padding: 0;
  border: 0;
  min-width: 0;
}
h1 {
  font: 500 clamp(26px, 3.6vw, 40px)/1.12 var(--serif);
  letter-spacing: -0.012em;
  overflow-wrap: anywhere;
}
h2 {
  font: 500 19px/1.3 var(--serif);
  margin-bottom: 14px;
}
button,
select,
input {
  font: inherit;
  color: inherit;
}
:focus-visible {
  outline: 2px solid var(--focus);
  outline-offset: 2px;
}
noscript p {
  max-width: 1120px;
  margin: 0 auto 40px;
  padding: 0 40px;
}

header {
  display: grid;
  grid-template-columns: 1fr auto;
  gap: 12px 56px;
  align-items: end;
  margin-bottom: 26px;
}
#lead {
  max-width: 74ch;
  margin-top: 12px;
  color: var(--soft);
  text-wrap: pretty;
}
.sign.positive {
  color: var(--positive);
}
.sign.negative {
  color: var(--negative);
}
#score {
  text-align: right;
  font: 400 clamp(30px, 4vw, 44px)/1 var(--serif);
  white-space: nowrap;
}
#score small {
  display: block;
  margin-top: 8px;
  font: 13px/1.3 var(--sans);
  color: var(--soft);
}

#stage {
  position: relative;
  min-height: 200px;
}
#scene,
#stage canvas {
  position: absolute;
  inset: 0;
  width: 100%;
  height: 100%;
  display: block;
}
#stage canvas {
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
#readout {
  min-height: 4.2em;
  padding: 14px 0 10px;
  text-wrap: pretty;
}

#controls {
  display: flex;
  flex-wrap: wrap;
  gap: 10px 40px;
  padding: 14px 0;
  border: solid var(--rule);
  border-width: 1px 0;
  font-size: 14px;
  color: var(--soft);
}
#controls fieldset {
  display: flex;
  flex-wrap: wrap;
  gap: 8px 20px;
  align-items: center;
}
#controls legend {
  position: absolute;
  width: 1px;
  height: 1px;
  overflow: hidden;
  clip-path: inset(50%);
}
#controls label {
  display: inline-flex;
  gap: 7px;
  align-items: center;
  white-space: nowrap;
  cursor: pointer;
}
#controls input[type="checkbox"] {
  accent-color: var(--ink);
  margin: 0;
  width: 15px;
  height: 15px;
}
#controls input[type="range"] {
  accent-color: var(--ink);
  width: 104px;
  height: 18px;
}
#controls output {
  min-width: 3.4ch;
  color: var(--ink);
}
#controls var {
  font: italic 15px var(--serif);
  color: var(--ink);
}
#actions {
  display: flex;
  flex-wrap: wrap;
  gap: 8px 18px;
  align-items: center;
  margin-left: auto;
}
#actions button {
  border: 0;
  border-bottom: 1px solid var(--rule);
  background: none;
  padding: 1px 2px;
  cursor: pointer;
}
#actions button:hover {
  color: var(--ink);
  border-color: var(--ink);
}
.swatch {
  width: 18px;
  height: 3px;
  border-radius: 2px;
}
.swatch.positive {
  background: var(--positive);
}
.swatch.negative {
  background: var(--negative);
}
[data-palette="safe"] .swatch.negative {
  background: repeating-linear-gradient(90deg, var(--negative) 0 5px, transparent 5px 8px);
}
select {
  background: transparent;
  border: 0;
  border-bottom: 1px solid var(--rule);
  border-radius: 0;
  padding: 1px 2px;
  cursor: pointer;
}
select option {
  background: var(--paper);
  color: var(--ink);
}

#columns {
  display: grid;
  grid-template-columns: minmax(0, 1fr) minmax(0, 1fr);
  gap: 36px 64px;
  margin: 34px 0 40px;
}
#account {
  width: 100%;
  border-collapse: collapse;
  font-size: 14px;
}
#account th {
  text-align: left;
  font-weight: 400;
  color: var(--soft);
  white-space: nowrap;
  padding: 6px 14px 6px 0;
  width: 1%;
}
#account td {
  padding: 6px 0;
}
#account .bar {
  width: 99%;
}
#account .bar svg {
  display: block;
  width: 100%;
  height: 14px;
  background: var(--faint);
  overflow: visible;
}
#account .number,
#account .share {
  text-align: right;
  white-space: nowrap;
  padding-left: 16px;
}
#account .share {
  color: var(--soft);
  min-width: 8ch;
}
#account .positive rect {
  fill: var(--positive);
}
#account .negative rect {
  fill: var(--negative);
}
#account .unattributed rect {
  fill: var(--unattributed);
}
#account :is(.within_a, .within_b) rect {
  fill: var(--soft);
}
#account .score rect {
  fill: var(--ink);
}
#account .chosen rect {
  fill: var(--soft);
}
#account .score > * {
  border-top: 1px solid var(--rule);
  padding-top: 9px;
  padding-bottom: 9px;
}
#account .score th,
#account .score .number {
  color: var(--ink);
  font-weight: 600;
}
#account .chosen.none {
  opacity: 0.55;
}

#explained {
  margin-top: 16px;
  font-size: 14px;
  color: var(--soft);
  max-width: 52ch;
  text-wrap: pretty;
}

#matches {
  list-style: none;
  display: grid;
  grid-template-columns: repeat(auto-fill, minmax(112px, 1fr));
  gap: 14px 12px;
}
#matches button {
  display: grid;
  grid-template-columns: 1fr 1fr;
  gap: 3px;
  width: 100%;
  padding: 0 0 5px;
  border: 0;
  border-bottom: 2px solid transparent;
  background: none;
  text-align: left;
  cursor: pointer;
}
#matches button:hover,
#matches button[aria-pressed="true"] {
  border-bottom-color: currentcolor;
}
#matches .thumb {
  width: 100%;
  aspect-ratio: 1;
  display: block;
}
#matches .thumb path {
  fill: none;
  stroke: #fff;
  stroke-width: 1.5;
  vector-effect: non-scaling-stroke;
  filter: drop-shadow(0 0 0.5px #000) drop-shadow(0 0 0.5px #000);
}
#matches .share {
  grid-column: 1 / -1;
  font-size: 14px;
  margin-top: 3px;
}
#matches .positive .share {
  color: var(--positive);
}
#matches .negative .share {
  color: var(--negative);
}
#matches:has(.word) {
  grid-template-columns: repeat(auto-fill, minmax(190px, 1fr));
}
#matches .word {
  padding: 4px 8px;
  border: 1px solid var(--rule);
  overflow: hidden;
  text-overflow: ellipsis;
  white-space: nowrap;
}

footer {
  border-top: 1px solid var(--rule);
  padding-top: 16px;
  font-size: 13px;
  color: var(--soft);
  display: grid;
  gap: 14px;
}
#help,
#facts {
  line-height: 1.7;
}
kbd {
  font: 12px var(--sans);
  border: 1px solid var(--rule);
  border-radius: 3px;
  padding: 0 4px;
}
#facts {
  display: flex;
  flex-wrap: wrap;
  gap: 2px 22px;
}
#facts div {
  display: flex;
  gap: 6px;
  min-width: 0;
}
#facts dt::after {
  content: ":";
}
#facts dd {
  color: var(--ink);
  overflow-wrap: anywhere;
}

@media (max-width: 760px) {
  header {
    grid-template-columns: 1fr;
  }
  .sign.positive {
    color: var(--positive);
  }
  .sign.negative {
    color: var(--negative);
  }
  #score {
    text-align: left;
  }
  #columns {
    grid-template-columns: minmax(0, 1fr);
  }
  #actions {
    margin-left: 0;
  }
  #matches {
    grid-template-columns: repeat(3, 1fr);
  }
  #matches:has(.word) {
    grid-template-columns: 1fr 1fr;
  }
  #controls input[type="range"] {
    width: 88px;
  }
}
@media (forced-colors: active) {
  .region,
  .swatch,
  #account rect,
  .thumb {
    forced-color-adjust: none;
  }
}
@media print {
  #controls,
  #help,
  #actions,
  .zoom {
    display: none;
  }
}

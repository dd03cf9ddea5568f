// How the page looks. It lives in a shadow root: nothing outside is touched, nothing outside reaches in.

export const STYLE = /* css */ `
:host {
  display: grid;
}
* {
  box-sizing: border-box;
}
.page {
  background: var(--paper);
  color: var(--ink);
  font: 15px/1.5 var(--sans);
  font-variant-numeric: tabular-nums;
  -webkit-text-size-adjust: 100%;
  padding: clamp(20px, 4vw, 52px) max(clamp(16px, 4vw, 40px), (100% - 1120px) / 2 + 40px) 40px;
}
.failed {
  padding: 40px;
  font: 15px/1.5 sans-serif;
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

header {
  display: grid;
  grid-template-columns: 1fr auto;
  gap: 12px 56px;
  align-items: end;
  margin-bottom: 26px;
}
.lead {
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
.total {
  text-align: right;
  font: 400 clamp(30px, 4vw, 44px)/1 var(--serif);
  white-space: nowrap;
}
.total small {
  display: block;
  margin-top: 8px;
  font: 13px/1.3 var(--sans);
  color: var(--soft);
}

.readout {
  min-height: 4.2em;
  padding: 14px 0 10px;
  text-wrap: pretty;
}

.controls {
  display: flex;
  flex-wrap: wrap;
  gap: 10px 40px;
  padding: 14px 0;
  border: solid var(--rule);
  border-width: 1px 0;
  font-size: 14px;
  color: var(--soft);
}
.controls fieldset {
  display: flex;
  flex-wrap: wrap;
  gap: 8px 20px;
  align-items: center;
}
.controls legend {
  position: absolute;
  width: 1px;
  height: 1px;
  overflow: hidden;
  clip-path: inset(50%);
}
.controls label {
  display: inline-flex;
  gap: 7px;
  align-items: center;
  white-space: nowrap;
  cursor: pointer;
}
.controls input[type="checkbox"] {
  accent-color: var(--ink);
  margin: 0;
  width: 15px;
  height: 15px;
}
.controls input[type="range"] {
  accent-color: var(--ink);
  width: 104px;
  height: 18px;
}
.controls output {
  min-width: 3.4ch;
  color: var(--ink);
}
.controls var {
  font: italic 15px var(--serif);
  color: var(--ink);
}
.actions {
  display: flex;
  flex-wrap: wrap;
  gap: 8px 18px;
  align-items: center;
  margin-left: auto;
}
.actions button {
  border: 0;
  border-bottom: 1px solid var(--rule);
  background: none;
  padding: 1px 2px;
  cursor: pointer;
}
.actions button:hover {
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

.columns {
  display: grid;
  grid-template-columns: minmax(0, 1fr) minmax(0, 1fr);
  gap: 36px 64px;
  margin: 34px 0 40px;
}
.account {
  width: 100%;
  border-collapse: collapse;
  font-size: 14px;
}
.account th {
  text-align: left;
  font-weight: 400;
  color: var(--soft);
  white-space: nowrap;
  padding: 6px 14px 6px 0;
  width: 1%;
}
.account td {
  padding: 6px 0;
}
.account .bar {
  width: 99%;
}
.account .bar svg {
  display: block;
  width: 100%;
  height: 14px;
  background: var(--faint);
  overflow: visible;
}
.account .number,
.account .share {
  text-align: right;
  white-space: nowrap;
  padding-left: 16px;
}
.account .share {
  color: var(--soft);
  min-width: 8ch;
}
.account .positive rect {
  fill: var(--positive);
}
.account .negative rect {
  fill: var(--negative);
}
.account .unattributed rect {
  fill: var(--unattributed);
}
.account :is(.within_a, .within_b) rect {
  fill: var(--soft);
}
.account .score rect {
  fill: var(--ink);
}
.account .chosen rect {
  fill: var(--soft);
}
.account .score > * {
  border-top: 1px solid var(--rule);
  padding-top: 9px;
  padding-bottom: 9px;
}
.account .score th,
.account .score .number {
  color: var(--ink);
  font-weight: 600;
}
.account .chosen.none {
  opacity: 0.55;
}

.explained {
  margin-top: 16px;
  font-size: 14px;
  color: var(--soft);
  max-width: 52ch;
  text-wrap: pretty;
}

.matches {
  list-style: none;
  display: grid;
  grid-template-columns: repeat(auto-fill, minmax(112px, 1fr));
  gap: 14px 12px;
}
.matches button {
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
.matches button:hover,
.matches button[aria-pressed="true"] {
  border-bottom-color: currentcolor;
}
.matches .thumb {
  width: 100%;
  aspect-ratio: 1;
  display: block;
}
.matches .thumb path {
  fill: none;
  stroke: #fff;
  stroke-width: 1.5;
  vector-effect: non-scaling-stroke;
  filter: drop-shadow(0 0 0.5px #000) drop-shadow(0 0 0.5px #000);
}
.matches .share {
  grid-column: 1 / -1;
  font-size: 14px;
  margin-top: 3px;
}
.matches .positive .share {
  color: var(--positive);
}
.matches .negative .share {
  color: var(--negative);
}
.matches:has(.word) {
  grid-template-columns: repeat(auto-fill, minmax(190px, 1fr));
}
.matches .word {
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
.help,
.facts {
  line-height: 1.7;
}
kbd {
  font: 12px var(--sans);
  border: 1px solid var(--rule);
  border-radius: 3px;
  padding: 0 4px;
}
.facts {
  display: flex;
  flex-wrap: wrap;
  gap: 2px 22px;
}
.facts div {
  display: flex;
  gap: 6px;
  min-width: 0;
}
.facts dt::after {
  content: ":";
}
.facts dd {
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
  .total {
    text-align: left;
  }
  .columns {
    grid-template-columns: minmax(0, 1fr);
  }
  .actions {
    margin-left: 0;
  }
  .matches {
    grid-template-columns: repeat(3, 1fr);
  }
  .matches:has(.word) {
    grid-template-columns: 1fr 1fr;
  }
  .controls input[type="range"] {
    width: 88px;
  }
}
@media (forced-colors: active) {
  .region,
  .swatch,
  .account rect,
  .thumb {
    forced-color-adjust: none;
  }
}
@media print {
  .controls,
  .help,
  .actions,
  .zoom {
    display: none;
  }
}
`;

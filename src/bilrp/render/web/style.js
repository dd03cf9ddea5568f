// @ts-check
// The style of the page, scoped to its shadow root.

export const STYLE = /* css */ `
:host {
  display: grid;
  grid-template-columns: minmax(0, 1fr);
}
* {
  box-sizing: border-box;
}
[hidden] {
  display: none !important;
}
.page {
  background: var(--paper);
  color: var(--ink);
  font: 15px/1.5 var(--sans);
  font-variant-numeric: tabular-nums;
  -webkit-text-size-adjust: 100%;
  container-type: inline-size;
  padding: clamp(16px, 3vw, 40px) max(clamp(14px, 3vw, 40px), (100% - 1240px) / 2) 32px;
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
  font: 500 14px/1.4 var(--sans);
  color: var(--soft);
  overflow-wrap: anywhere;
}
h2 {
  font: 500 19px/1.3 var(--serif);
  margin-bottom: 14px;
}
.summary {
  max-width: 78ch;
  margin: 4px 0 6px;
  font: 400 clamp(18px, 1.9vw, 23px)/1.4 var(--serif);
  text-wrap: pretty;
  overflow-wrap: anywhere;
}
.summary strong {
  font-weight: 600;
}
.top {
  display: grid;
  grid-template-columns: minmax(0, 1fr) minmax(0, 340px);
  gap: 8px 48px;
  align-items: end;
  margin-bottom: 14px;
}
:is(.carried, .differs) {
  font-size: 16px;
  line-height: 46px;
}
:is(.carried, .differs) + :is(.carried, .differs) {
  margin-top: 2px;
}
:is(.carried, .differs) button {
  display: inline-flex;
  gap: 5px;
  align-items: center;
  vertical-align: middle;
  max-width: 100%;
  height: 46px;
  padding: 0 3px;
  border: 0;
  border-bottom: 2px solid transparent;
  background: none;
  cursor: pointer;
  line-height: 1.2;
}
:is(.carried, .differs) button:is(:hover, [aria-pressed="true"]) {
  border-bottom-color: currentcolor;
}
:is(.carried, .differs) .thumb {
  flex: none;
  width: 52px;
  height: 40px;
  border-radius: 3px;
}
:is(.carried, .differs) .chip {
  padding: 3px 7px;
  border-radius: 3px;
}
:is(.carried, .differs):not(:has(.thumb)) {
  line-height: 34px;
}
:is(.carried, .differs):not(:has(.thumb)) button {
  height: 32px;
}
.carried b {
  color: var(--positive);
}
.differs b {
  color: var(--negative);
}
:is(.carried, .differs) b {
  font-weight: 600;
  white-space: nowrap;
}
.warned {
  margin-top: 4px;
  color: var(--soft);
}
.tally svg {
  display: block;
  width: 100%;
  height: 26px;
}
.tally p {
  font-size: 13.5px;
  line-height: 1.45;
  color: var(--soft);
  text-wrap: pretty;
}
.tally .positive {
  fill: var(--positive);
  background: var(--positive);
}
.tally .negative {
  fill: var(--negative);
  background: var(--negative);
}
.tally .special_tokens {
  fill: var(--soft);
  background: var(--soft);
}
.tally .shared {
  fill: var(--unattributed);
  background: var(--unattributed);
  opacity: 0.45;
}
.tally .unattributed {
  fill: var(--unattributed);
  background: var(--unattributed);
}
.tally .score {
  fill: var(--ink);
}
.tally .swatch {
  display: inline-block;
  width: 9px;
  height: 9px;
  margin-right: 4px;
}
.switch {
  margin: 0 0 6px;
}
.framed :is(.tally, .differs) {
  display: none;
}
.framed .top {
  margin-bottom: 6px;
}
.switch button[data-plain] {
  margin-left: 12px;
  border-left: 1px solid var(--rule);
}
.switch button {
  padding: 4px 14px;
  border: 1px solid var(--rule);
  background: none;
  cursor: pointer;
}
.switch button + button {
  border-left: 0;
}
.switch button[aria-pressed="true"] {
  background: var(--faint);
  font-weight: 600;
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

.findings {
  list-style: none;
  display: grid;
  grid-template-columns: repeat(auto-fill, minmax(min(210px, 44%), 1fr));
  gap: 16px 20px;
  margin: 14px 0 22px;
}
.compact {
  padding-block: 12px;
}
.compact .summary {
  margin-bottom: 8px;
  font-size: 17px;
}
.compact .findings {
  grid-template-columns: none;
  grid-auto-flow: column;
  grid-auto-columns: 190px;
  overflow-x: auto;
  margin: 8px 0 10px;
}
.findings button,
.matches button {
  width: 100%;
  padding: 0 0 6px;
  border: 0;
  border-bottom: 2px solid transparent;
  background: none;
  text-align: left;
  cursor: pointer;
}
.findings button {
  display: grid;
  grid-template-columns: auto auto 1fr;
  gap: 6px 8px;
  align-items: baseline;
}
:is(.findings, .matches) button:is(:hover, [aria-pressed="true"]) {
  border-bottom-color: currentcolor;
}
.findings .pair {
  grid-column: 1 / -1;
  display: grid;
  grid-template-columns: minmax(0, 1fr) minmax(0, 1fr);
  gap: 3px;
}
.thumb {
  display: block;
  width: 100%;
  height: auto;
  background: var(--faint);
}
.chip {
  padding: 5px 8px;
  background: var(--faint);
  overflow: hidden;
  text-overflow: ellipsis;
  white-space: nowrap;
}
.findings .number {
  display: inline-grid;
  place-items: center;
  width: 19px;
  height: 19px;
  border-radius: 50%;
  font: 700 11px/1 var(--sans);
  color: var(--onsign);
}
.findings .positive .number {
  background: var(--positive);
}
.findings .negative .number {
  background: var(--negative);
}
.share {
  font-weight: 600;
}
.positive .share,
.sign.positive {
  color: var(--positive);
}
.negative .share,
.sign.negative {
  color: var(--negative);
}
.findings .where {
  color: var(--soft);
  font-size: 13px;
}

.controls {
  display: flex;
  flex-wrap: wrap;
  gap: 10px 36px;
  padding: 13px 0;
  border: solid var(--rule);
  border-width: 1px 0;
  font-size: 14px;
  color: var(--soft);
}
.controls fieldset {
  display: flex;
  flex-wrap: wrap;
  gap: 8px 18px;
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
.controls :is([type="checkbox"], [type="radio"]) {
  accent-color: var(--ink);
  margin: 0;
  width: 15px;
  height: 15px;
}
.controls [type="range"] {
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
.controls .actions {
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
.paper {
  flex-basis: 100%;
}
summary {
  cursor: pointer;
  width: fit-content;
}
.paper fieldset {
  padding-top: 8px;
}
.swatch {
  width: 18px;
  height: 4px;
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

.more {
  margin-top: 14px;
}
.more > summary {
  font-size: 14px;
  color: var(--soft);
}
.columns {
  display: grid;
  grid-template-columns: minmax(0, 1fr) minmax(0, 1fr);
  gap: 36px 64px;
  margin: 22px 0 36px;
}
.breakdown {
  width: 100%;
  border-collapse: collapse;
  font-size: 14px;
}
.breakdown th {
  text-align: left;
  font-weight: 400;
  color: var(--soft);
  white-space: nowrap;
  padding: 6px 14px 6px 0;
  width: 1%;
}
.breakdown td {
  padding: 6px 0;
}
.breakdown .bar {
  width: 99%;
}
.breakdown .bar svg {
  display: block;
  width: 100%;
  height: 14px;
  background: var(--faint);
  overflow: visible;
}
.breakdown :is(.number, .share) {
  text-align: right;
  white-space: nowrap;
  padding-left: 16px;
  font-weight: 400;
}
.breakdown .share {
  color: var(--soft);
  min-width: 8ch;
}
.breakdown .positive rect {
  fill: var(--positive);
}
.breakdown .negative rect {
  fill: var(--negative);
}
.breakdown :is(.unattributed, .shared, .reference_terms, .reference_score, .rest) rect {
  fill: var(--unattributed);
}
.breakdown :is(.special_tokens, .self_terms_a, .self_terms_b, .chosen) rect {
  fill: var(--soft);
}
.breakdown .score rect {
  fill: var(--ink);
}
.breakdown .score > * {
  border-top: 1px solid var(--rule);
  padding-top: 9px;
  padding-bottom: 9px;
}
.breakdown .score :is(th, .number) {
  color: var(--ink);
  font-weight: 600;
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
  grid-template-columns: minmax(0, 1fr) minmax(0, 1fr);
  gap: 3px;
}
.matches .share {
  grid-column: 1 / -1;
  font-size: 14px;
  font-weight: 400;
  margin-top: 2px;
}
.matches:has(.chip) {
  grid-template-columns: repeat(auto-fill, minmax(190px, 1fr));
}

footer {
  border-top: 1px solid var(--rule);
  padding-top: 16px;
  font-size: 13px;
  color: var(--soft);
  display: grid;
  gap: 12px;
}
.lead {
  max-width: 92ch;
  text-wrap: pretty;
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

@container (max-width: 860px) {
  .top {
    grid-template-columns: minmax(0, 1fr);
  }
}
@media (max-width: 760px) {
  .columns {
    grid-template-columns: minmax(0, 1fr);
  }
  .controls .actions {
    margin-left: 0;
  }
  .matches {
    grid-template-columns: repeat(3, 1fr);
  }
  .matches:has(.chip) {
    grid-template-columns: 1fr 1fr;
  }
}
@media (forced-colors: active) {
  .scene,
  .legend,
  .swatch,
  .breakdown rect,
  .thumb {
    forced-color-adjust: none;
  }
}
@media print {
  .controls,
  .help,
  .zoom {
    display: none;
  }
}
`;

// What is seen, and the sentence that says so: computed from the model and the state, nothing kept but Algorithm 1's links.

import { links, onlySigns, OTHER, partners, strongest, sum } from "./data.js";
import { capital, decimals, nameOf, nounOf, percent, shortNumber, signed } from "./words.js";

const FAINTEST = 1 / 512; // less than half a grey level: a link that no screen can show
const MOST_ARCS = 5000; // the strongest are drawn: more would neither be read nor follow a slider


/** The choice that is shown: a list entry under the pointer, else what is pinned, else what is pointed at. */
export const activeOf = (app) => app.state.peek ?? app.state.pinned ?? app.state.preview;

export const partnersOf = (app, { side, set }) => partners(app.model.relevance, app.model.rows, app.model.columns, side, set);

function normalised(values) {
  const top = values.reduce((m, v) => Math.max(m, Math.abs(v)), 0);
  return { top, values: top ? values.map((v) => v / top) : values };
}

/** {light, chosen, arcs}: light[side][i] in [-1, 1], arcs in the sides' own units, weakest first. */
export function sceneOf(app) {
  const active = activeOf(app);
  if (!active) return restScene(app);
  const { side, set, partner } = active;
  const other = OTHER[side];
  const chosen = { [side]: new Set(set), [other]: new Set(partner == null ? [] : [partner]) };
  const all = onlySigns(partnersOf(app, active), app.state.shown);
  const { values, top } = normalised(partner == null ? all : all.map((v, j) => (j === partner ? v : 0)));
  const centre = (s, is) => [0, 1].map((d) => sum(is.map((i) => app.layout.panels[s].shape.centres[i][d])) / is.length);
  const near = centre(side, set);
  const arcs = app.state.shown.arcs
    ? strongest(values, 48)
        .reverse()
        .map((j) => {
          const ends = { [side]: near, [other]: app.layout.panels[other].shape.centres[j] };
          return { from: ends.a, to: ends.b, value: values[j], alpha: Math.abs(values[j]) ** app.state.drawing.p };
        })
    : [];
  return {
    active,
    light: { [side]: null, [other]: values },
    chosen,
    arcs: arcs.filter((x) => x.alpha > FAINTEST),
    top,
  };
}

/** Nothing chosen: every link of Algorithm 1, and on demand each region's share of the score. */
function restScene(app) {
  const centres = (side) => app.layout.panels[side].shape.centres;
  const arcs = app.state.shown.arcs
    ? restLinks(app).map(({ pair, value, alpha }) => ({
        from: centres("a")[Math.floor(pair / app.model.columns)],
        to: centres("b")[pair % app.model.columns],
        value,
        alpha,
      }))
    : [];
  const share = (side) => (app.state.shown.heat ? normalised(onlySigns(app.model.shares[side], app.state.shown)).values : null);
  return {
    active: null,
    light: { a: share("a"), b: share("b") },
    chosen: { a: new Set(), b: new Set() },
    arcs,
    top: 0,
  };
}

/** Kept while l, h, p and the signs stay: pointing around must not redo Algorithm 1. */
function restLinks(app) {
  const { positive, negative } = app.state.shown;
  const key = JSON.stringify([app.state.drawing, positive, negative]);
  if (app.kept?.key !== key) {
    const shown = onlySigns(app.model.relevance, app.state.shown);
    const found = links(shown, app.state.drawing, app.model.unit, leastDrawn(app, shown));
    const count = shown.reduce((n, r) => n + (Math.abs(r) / app.model.unit > app.state.drawing.l), 0);
    app.kept = { key, count, links: found.filter(({ alpha }) => alpha > FAINTEST) };
  }
  return app.kept.links;
}

/** |R| of the last pair that is drawn, for each choice of signs. */
function leastDrawn(app, shown) {
  const key = `${app.state.shown.positive}${app.state.shown.negative}`;
  app.least[key] ??= shown.length > MOST_ARCS ? shown.map(Math.abs).sort().at(-MOST_ARCS) : 0;
  return app.least[key];
}

/** One or two sentences about what is shown; also what a screen reader says. */
export function describe(app) {
  const active = activeOf(app);
  if (!active) return restWords(app);
  const { side, set, partner } = active;
  const values = partnersOf(app, active);
  const who =
    set.length === 1 ? nameOf(app.model.data, side, set[0]) : `${set.length} ${nounOf(app.model.data)}s of ${side.toUpperCase()}`;
  const first = set.length === 1 && !app.model.data[side].names && who.startsWith("row") ? `Region ${who}` : capital(who);
  const probe = partner ?? (app.state.pinned && app.state.probe?.side === OTHER[side] ? app.state.probe.i : null);
  if (probe != null) {
    const digits = decimals([values[probe]]);
    return `${first} with ${nameOf(app.model.data, OTHER[side], probe)}: ${percent(values[probe], app.model.whole)} of the score (${signed(values[probe], digits)}).`;
  }
  const best = strongest(onlySigns(values, app.state.shown), 3);
  const list = best.map((j) => `${nameOf(app.model.data, OTHER[side], j)} (${percent(values[j], app.model.whole)})`);
  const tail = list.length
    ? `strongest partner${list.length > 1 ? "s" : ""} ${list.join("; ")}.`
    : "no partner of this sign.";
  return `${first}: ${percent(sum(values), app.model.whole)} of the score; ${tail}`;
}

function restWords(app) {
  const drawn = restLinks(app).length;
  const number = (n) => n.toLocaleString("en");
  const tail = `Point at a ${nounOf(app.model.data)}, or press Tab and use the arrow keys.`;
  if (!app.state.shown.arcs) return tail;
  const which = drawn >= MOST_ARCS ? ` the ${number(drawn)} strongest are drawn.` : "";
  return `${number(app.kept.count)} of ${number(app.model.relevance.length)} pairs are stronger than l = ${shortNumber(app.state.drawing.l)}${which ? ":" : "."}${which} ${tail}`;
}

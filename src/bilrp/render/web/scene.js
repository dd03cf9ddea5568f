// @ts-check
// What to draw, and a sentence that describes it, computed from model, state and scale.

import { onlySigns, OTHER, partners, strongest, sum } from "./data.js";
import { scaleOf } from "./scale.js";
import { capital, counted, decimals, nameOf, nounOf, ofScore, percent, formatSigned } from "./words.js";

const FAINTEST = 1 / 256; // less than a grey level
const MOST_PAIRS = 150; // drawn at once: more are hard to distinguish
const MOST_LINKS = 2000; // with Algorithm 1, where most are faint; more would be slow
const MOST_PARTNERS = 48;
const MOST_LETTERS = 60; // of a name in the sentence: a region may be a whole sentence
const WIDEST_SHARE = "−1000.0 %";
const DRAWN = 12; // findings this many times weaker than the strongest are listed but not drawn

/** Whether a selection is a group, a match or a difference: then pointing into it goes on to single regions. */
const isGroup = (choice) => choice?.finding != null || choice?.difference != null;

/**
 * The selection to show: a hovered list entry, else the pinned selection, else what is pointed at. Of a pinned group the
 * region pointed at. None while all colours are hidden.
 */
export function activeOf({ state: { plain, peek, pinned, preview } }) {
  if (plain) return null;
  return peek ?? (isGroup(pinned) && preview && !isGroup(preview) ? preview : pinned) ?? preview;
}

/** The match or difference that is drawn around a region, the smallest of several; null without one. */
export function groupAt(app, side, i) {
  const { draw, plain } = app.state;
  const groups = plain ? [] : draw === "findings" ? drawnFindings(app) : draw === "differences" ? app.model.differences : [];
  const around = groups.filter((one) => one[side].includes(i));
  if (!around.length) return null;
  const one = around.reduce((least, other) => (other[side].length < least[side].length ? other : least));
  return draw === "findings" ? { finding: one.k } : { difference: one.k, side: one.side, set: one.regions };
}

export const partnersOf = ({ model }, { side, set }) => partners(model.relevance, model.rows, model.columns, side, set);

export const shownFindings = ({ model, state }) =>
  model.findings.filter(({ relevance }) => (relevance > 0 ? state.shown.positive : state.shown.negative));

/** The findings to draw: those not much weaker than the strongest; all are listed. */
const drawnFindings = (app) => {
  const findings = shownFindings(app);
  const top = Math.max(...findings.map(({ relevance }) => Math.abs(relevance)), 0);
  return findings.filter(({ relevance }) => Math.abs(relevance) >= top / DRAWN);
};

/** Strength of colour with the sign: [-1, 1]. */
const tint = (scale, values) => values.map((v) => Math.sign(v) * scale.strength(v));

/**
 * {active, scale, light, chosen, arcs, findings}: light[side][i] in [-1, 1], or null for a side that is not tinted,
 * arcs [{ends: {a, b}, value, strength}] weakest first, findings the ones that are outlined and joined.
 */
export function sceneOf(app) {
  const active = activeOf(app);
  const scale = scaleOf(app.model, app.state);
  const rest = { active, scale, light: { a: null, b: null }, chosen: { a: [], b: [] }, arcs: [], findings: [], differences: [] };
  if (app.state.plain) return rest;
  if (!active) return { ...rest, ...restScene(app, scale) };
  if (active.difference != null)
    return { ...rest, chosen: { ...rest.chosen, [active.side]: active.set }, differences: [app.model.differences[active.difference]] };
  return { ...rest, ...(active.finding == null ? choiceScene(app, scale, active) : findingScene(app, scale, active)) };
}

const visible = (arcs) => arcs.filter(({ strength }) => strength > FAINTEST).sort((x, y) => x.strength - y.strength);

/** Selected regions of one side: tint their partners, draw arcs to the strongest. */
function choiceScene(app, scale, { side, set, partner }) {
  const other = OTHER[side];
  const all = onlySigns(partnersOf(app, { side, set }), app.state.shown);
  const values = partner == null ? all : all.map((v, j) => (j === partner ? v : 0));
  const arcs = strongest(values, MOST_PARTNERS).map((j) => ({
    ends: { [side]: set, [other]: [j] },
    value: values[j],
    strength: scale.strength(values[j]),
  }));
  return {
    light: { [side]: null, [other]: tint(scale, values) },
    chosen: { [side]: set, [other]: partner == null ? [] : [partner] },
    arcs: visible(arcs),
  };
}

/** One finding: tint its regions by their contribution, draw its pairs. */
function findingScene(app, scale, { finding }) {
  const { model, state } = app;
  const one = model.findings[finding];
  const inside = one.a.flatMap((i) => one.b.map((j) => i * model.columns + j));
  const values = onlySigns(
    inside.map((pair) => model.relevance[pair]),
    state.shown,
  );
  const arcs = strongest(values, MOST_PARTNERS).map((k) => pairArc(model, scale, inside[k]));
  return {
    light: { a: tint(scale, one.sums.a), b: tint(scale, one.sums.b) },
    chosen: { a: one.a, b: one.b },
    arcs: visible(arcs),
    findings: [one],
  };
}

const pairArc = ({ relevance, columns }, scale, pair) => ({
  ends: { a: [Math.floor(pair / columns)], b: [pair % columns] },
  value: relevance[pair],
  strength: scale.strength(relevance[pair]),
});

/** Without a selection: the findings, the strongest pairs, or each region's share of the score. */
function restScene(app, scale) {
  const { model, state } = app;
  if (state.draw === "findings") return { findings: drawnFindings(app) };
  if (state.draw === "differences") return { differences: model.differences };
  if (state.draw === "pairs") return { arcs: restPairs(app, scale) };
  const share = (side) => tint(scale, onlySigns(model.shares[side], state.shown));
  return { light: { a: share("a"), b: share("b") } };
}

/** Cached per scale and signs, so that hovering does not filter all pairs again. */
function restPairs(app, scale) {
  const { positive, negative } = app.state.shown;
  const key = JSON.stringify([app.state.paper && app.state.drawing, positive, negative]);
  if (app.cachedArcs?.key !== key) {
    const shown = onlySigns(app.model.relevance, app.state.shown);
    const sizes = Float64Array.from(shown, Math.abs).sort();
    const most = app.state.paper ? MOST_LINKS : MOST_PAIRS;
    const least = sizes.length > most ? sizes[sizes.length - most] : 0;
    const arcs = [];
    shown.forEach((value, pair) => value && Math.abs(value) >= least && arcs.push(pairArc(app.model, scale, pair)));
    app.cachedArcs = { key, arcs: visible(arcs).slice(-most) };
  }
  return app.cachedArcs.arcs;
}

const PLAIN_WORDS = "All colours are hidden: the two inputs as they are.";

const briefName = ({ data }, side, set) => nameOf(data, side, set, MOST_LETTERS);

/** One or two sentences about what is shown; also what a screen reader says. */
export function describe(app, scene) {
  const { model, state } = app;
  const { active } = scene;
  if (state.plain) return PLAIN_WORDS;
  if (!active) return restWords(app, scene);
  if (active.difference != null) return differenceWords(model, active.difference);
  if (active.finding != null) return findingWords(app, scene);
  const { side, set, partner } = active;
  const values = partnersOf(app, active);
  const who = capital(briefName(model, side, set));
  const probe = partner ?? (state.pinned && state.probe?.side === OTHER[side] ? state.probe.i : null);
  if (probe != null) {
    const number = formatSigned(values[probe], decimals([values[probe]]));
    return `${who} with ${briefName(model, OTHER[side], [probe])}: ${ofScore(values[probe], model)}${model.whole ? ` (${number})` : ""}.`;
  }
  const best = strongest(onlySigns(values, state.shown), 3);
  const list = best.map((j) => `${briefName(model, OTHER[side], [j])}: ${percent(values[j], model.whole)}`);
  return regionWords(who, ofScore(sum(values), model), list);
}

function regionWords(who, share, list) {
  const tail = list.length ? `Strongest partner${list.length > 1 ? "s" : ""}: ${list.join("; ")}.` : "It has no partner of this sign.";
  return `${who}: ${share}. ${tail}`;
}

/** Sentences as long as those that `describe` gives for one region, a finding and at rest. */
export function longestSentences(app) {
  const { model, state } = app;
  const longest = (texts) => texts.reduce((best, text) => (text.length > best.length ? text : best), "");
  const [a, b] = ["a", "b"].map((side) => longest(Array.from({ length: model.data[side].count }, (_, i) => briefName(model, side, [i]))));
  const regions = [
    [a, b],
    [b, a],
  ].map(([one, other]) => regionWords(capital(one), `${WIDEST_SHARE} of ${model.wholeName}`, Array(3).fill(`${other}: ${WIDEST_SHARE}`)));
  const arcs = { length: MOST_PAIRS };
  const findings = model.findings.map((_, finding) => findingWords(app, { active: { finding }, arcs }));
  const drawn = { arcs, findings: drawnFindings(app) };
  const rest = ["findings", "differences", "pairs", "shares"].map((draw) => restWords({ model, state: { ...state, draw } }, drawn));
  const differences = model.differences.map((_, k) => differenceWords(model, k));
  return [...regions, longest(findings), longest(differences), longest(rest)];
}

function findingWords({ model }, { active, arcs }) {
  const one = model.findings[active.finding];
  const digits = decimals([one.relevance]);
  const quotes = model.data.a.names && model.data.b.names ? `${briefName(model, "a", one.a)} with ${briefName(model, "b", one.b)}, ` : "";
  return `Match ${active.finding + 1}: ${quotes}${ofScore(one.relevance, model)}${model.whole ? ` (${formatSigned(one.relevance, digits)})` : ""}; its strongest ${counted(arcs.length, "pair")} drawn.`;
}

function differenceWords(model, k) {
  const { side, regions, share } = model.differences[k];
  const quote = model.data[side].names ? briefName(model, side, regions) : `in ${side.toUpperCase()}`;
  return `Difference ${k + 1}, ${quote}: ${percent(share, 1)} of the squared distance of the two.`;
}

function restWords(app, { arcs, findings }) {
  const { model, state } = app;
  const noun = nounOf(model.data);
  const point = ["findings", "differences"].includes(state.draw) ? "Point at a number or into an outline" : `Point at a ${noun}`;
  const tail = `${point}, or press Tab and use the arrow keys.`;
  if (state.draw === "shares") return `Each ${noun}’s share of the score, summed over its partners. ${tail}`;
  if (state.draw === "differences") return `What sets the two apart is outlined, numbered by its share of their squared distance. ${tail}`;
  if (state.draw === "pairs") {
    const all = counted(model.relevance.length, "pair");
    return `The strongest ${arcs.length.toLocaleString("en")} of ${all} are drawn. ${tail}`;
  }
  const total = ofScore(sum(findings.map((one) => one.relevance)), model);
  const what = findings.length === 1 ? "1 match is drawn: " : `${findings.length} matches are drawn: together `;
  const weaker = shownFindings(app).length - findings.length;
  const more = weaker ? ` ${counted(weaker, "weaker one")} in the list.` : "";
  return `${findings.length ? `${what}${total}.${more}` : "No matches of this sign."} ${tail}`;
}

// @ts-check
// The colour scale: from relevance to strength of colour.
//
// By default it is logarithmic, from a twentieth of the strongest pair to the strongest sum (a finding, a region's share),
// because pairs, regions and findings differ by three orders of magnitude. "As in the paper" it is Algorithm 1: linear
// from l to h in units of the fourth moment, then to the power p.

export const ALPHA = 0.75; // maximum opacity, so that words on it and images below stay visible
const DEPTH = 20; // the faintest pair that is drawn is this many times weaker than the strongest

/** 1, 2 or 5 times a power of ten, at most (or, going up, at least) the value. */
export function nice(value, up) {
  const power = 10 ** Math.floor(Math.log10(value) + 1e-9);
  const steps = up ? [1, 2, 5, 10] : [10, 5, 2, 1];
  return power * steps.find((step) => (up ? step * power >= value * 0.999 : step * power <= value * 1.001));
}

function logarithmic(model) {
  const { strongestPair, strongestSum } = model;
  const whole = model.whole || 1;
  if (!strongestPair) return fixed(1, 10);
  const low = nice(strongestPair / whole / DEPTH) * whole;
  return fixed(low, Math.max(nice(strongestSum / whole, true) * whole, 10 * low));
}

function fixed(low, high) {
  const decades = Math.log(high / low);
  return {
    low,
    high,
    strength: (value) => Math.min(1, Math.max(0, Math.log(Math.abs(value) / low) / decades)),
    value: (strength) => low * Math.exp(strength * decades),
  };
}

function paper({ unit }, { l, h, p }) {
  return {
    low: l * unit,
    high: h * unit,
    strength: (value) => Math.min(1, Math.max(0, (Math.abs(value) / unit - l) / (h - l))) ** p,
    value: (strength) => unit * (l + (h - l) * strength ** (1 / p)),
  };
}

/** {low, high, strength(value) in [0, 1], value(strength)}: nothing is drawn below low, nothing gets stronger beyond high. */
export const scaleOf = (model, state) => (state.paper ? paper(model, state.drawing) : logarithmic(model));

/** Tick values above the low end: powers of ten of the score, and the high end. */
export function ticks(scale, model, state) {
  const whole = model.whole || 1;
  if (state.paper) return [0.5, 1].map((strength) => scale.value(strength));
  const powers = [];
  for (let power = Math.ceil(Math.log10(scale.low / whole)); 10 ** power * whole < scale.high; power++) powers.push(10 ** power * whole);
  return [...powers.filter((value) => value > 3 * scale.low && value < scale.high / 3), scale.high];
}

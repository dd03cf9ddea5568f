// @ts-check
// Decode the payload, Algorithm 1, sums over regions. Does not use the DOM.

export const OTHER = { a: "b", b: "a" };
export const sum = (values) => values.reduce((s, v) => s + v, 0);

function bytes(text) {
  const raw = atob(text);
  const out = new Uint8Array(raw.length);
  for (let k = 0; k < raw.length; k++) out[k] = raw.charCodeAt(k);
  return out.buffer;
}

function dequantize(text, scale) {
  const steps = new Int16Array(bytes(text));
  return Float64Array.from(steps, (step, k) => step * scale[k % scale.length]);
}

/** Decompress int16 steps stored as all low bytes, then all high bytes. */
async function inflate(text, scale) {
  const stream = new Blob([bytes(text)]).stream().pipeThrough(new DecompressionStream("deflate"));
  const planes = new Uint8Array(await new Response(stream).arrayBuffer());
  const high = new Int8Array(planes.buffer, planes.length / 2);
  return Float64Array.from(high, (top, k) => (256 * top + planes[k]) * scale);
}

/** R[i, j] row by row; stored factors are multiplied here: R = L Mᵀ. */
export async function decodePairs(pairs) {
  if (pairs.kind === "matrix") return Float64Array.from(new Float32Array(bytes(pairs.data)));
  if (pairs.kind === "deflated") return inflate(pairs.data, pairs.scale);
  const { rows, columns, rank } = pairs;
  const left = dequantize(pairs.left.data, pairs.left.scale);
  const right = dequantize(pairs.right.data, pairs.right.scale);
  const out = new Float64Array(rows * columns);
  for (let i = 0; i < rows; i++)
    for (let j = 0; j < columns; j++) {
      let sum = 0;
      for (let m = 0; m < rank; m++) sum += left[i * rank + m] * right[j * rank + m];
      out[i * columns + j] = sum;
    }
  return out;
}

/** E[R⁴]^(1/4), the unit of Algorithm 1; scaled by the largest value so that R⁴ cannot underflow. */
export function fourthMoment(relevance) {
  let top = 0;
  for (const r of relevance) top = Math.max(top, Math.abs(r));
  if (top === 0) return 1;
  let sum = 0;
  for (const r of relevance) sum += (r / top) ** 4;
  return top * (sum / relevance.length) ** 0.25;
}

/**
 * Algorithm 1 of Appendix F: [{pair, value, alpha}], weakest first; value in [-1, 1] carries the sign.
 * Pairs with |R| below `least` are left out; opacity grows with |R|, so these are the faintest.
 */
export function links(relevance, { l, h, p }, unit = fourthMoment(relevance), least = 0) {
  const delta = h - l;
  const out = [];
  for (let pair = 0; pair < relevance.length; pair++) {
    if (Math.abs(relevance[pair]) < least) continue;
    const r = relevance[pair] / unit; // normalisation
    const beyond = Math.abs(r) - l; // sparsification: R − clip(R, [−l, l])
    if (beyond <= 0) continue;
    const value = Math.sign(r) * Math.min(beyond / delta, 1); // thresholding
    out.push({ pair, value, alpha: Math.abs(value) ** p }); // opacity
  }
  return out.sort((x, y) => x.alpha - y.alpha);
}

/** Indices of the k largest |values|, largest first. */
export function strongest(values, k) {
  const best = [];
  for (let n = 0; n < values.length; n++) {
    const size = Math.abs(values[n]);
    if (size === 0 || (best.length === k && size <= Math.abs(values[best[k - 1]]))) continue;
    let at = best.length;
    while (at > 0 && Math.abs(values[best[at - 1]]) < size) at--;
    best.splice(at, 0, n);
    if (best.length > k) best.pop();
  }
  return best;
}

const APART = 2.5; // sizes of a region: nearer ones show the same place

/** The first of these pairs of regions, without those that are near a stronger one on both sides. Words are never near. */
export function spread(pairs, a, b, count) {
  const chosen = [];
  const isNear = (shape, i, j) => {
    if (shape.words || i === j) return i === j;
    const [[top, left, bottom, right], [x, y], [u, v]] = [shape.boxes[i], shape.centres[i], shape.centres[j]];
    return Math.hypot(x - u, y - v) < APART * Math.max(bottom - top, right - left);
  };
  for (const [i, j] of pairs) {
    if (chosen.length === count) break;
    if (!chosen.some(([k, l]) => isNear(a, i, k) && isNear(b, j, l))) chosen.push([i, j]);
  }
  return chosen;
}

/** Relevance of every region of the other side with the chosen regions: the sum of their rows (or columns). */
export function partners(relevance, rows, columns, side, chosen) {
  const out = new Float64Array(side === "a" ? columns : rows);
  for (const i of chosen)
    for (let j = 0; j < out.length; j++) out[j] += side === "a" ? relevance[i * columns + j] : relevance[j * columns + i];
  return out;
}

export const onlySigns = (values, shown) => values.map((v) => ((v > 0 ? shown.positive : shown.negative) ? v : 0));

/** Row sums, column sums and the strongest pair of a finding. */
function findingSums(relevance, rows, columns, { a, b }) {
  const sums = { a: new Float64Array(rows), b: new Float64Array(columns) };
  let best = [a[0], b[0]];
  for (const i of a)
    for (const j of b) {
      const value = relevance[i * columns + j];
      sums.a[i] += value;
      sums.b[j] += value;
      if (Math.abs(value) > Math.abs(relevance[best[0] * columns + best[1]])) best = [i, j];
    }
  return { sums, best: { a: best[0], b: best[1] } };
}

const largest = (values) => values.reduce((top, v) => Math.max(top, Math.abs(v)), 0);

/** Everything that follows from the payload alone and does not change. */
export async function buildModel(data) {
  const relevance = await decodePairs(data.pairs);
  const { rows, columns } = data.pairs;
  const every = (n) => Array.from({ length: n }, (_, i) => i);
  const unit = fourthMoment(relevance);
  const { score } = data.breakdown;
  const shares = {
    a: partners(relevance, rows, columns, "b", every(columns)),
    b: partners(relevance, rows, columns, "a", every(rows)),
  };
  const findings = (data.findings ?? []).map((one, k) => ({ ...one, k, ...findingSums(relevance, rows, columns, one) }));
  const differences = (data.differences ?? []).map((one, k) => ({
    ...one,
    k,
    a: [],
    b: [],
    [one.side]: one.regions,
    relevance: -one.contribution,
    best: { [one.side]: one.regions[0] },
  }));
  const strongestPair = largest(relevance);
  return Object.freeze({
    data,
    relevance,
    rows,
    columns,
    unit,
    shares,
    findings,
    differences,
    strongestPair,
    strongestSum: Math.max(strongestPair, largest(shares.a), largest(shares.b), largest(findings.map((f) => f.relevance))),
    // shares refer to the score, without what any two inputs share; near zero there are none, and the colour scale has the
    // units of the score
    wholeName: data.breakdown.shared == null ? "the score" : "what is specific to these two",
    whole: data.near_zero ? 0 : Math.abs(score - (data.breakdown.shared ?? 0)),
  });
}

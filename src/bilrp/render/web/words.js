// @ts-check
// Format numbers, regions and positions. Does not use the DOM.

/** Number of decimals with which the largest of these numbers shows four significant digits. */
export function decimals(values) {
  const top = Math.max(...values.map(Math.abs));
  return top > 0 ? Math.min(12, Math.max(0, 3 - Math.floor(Math.log10(top)))) : 0;
}

export const formatNumber = (value, digits) =>
  `${value < 0 ? "−" : ""}${Math.abs(value).toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits })}`;
export const formatSigned = (value, digits) =>
  Math.abs(value) < 0.5 * 10 ** -digits ? formatNumber(0, digits) : (value < 0 ? "" : "+") + formatNumber(value, digits);
/** A score, cosine or weight with three decimals. */
export const formatScore = (value) => formatNumber(value, 3);
/** A fraction as a whole percentage. */
export const roundPercent = (value) => `${formatNumber(100 * value, 0)} %`;
export const counted = (n, noun) => `${n.toLocaleString("en")} ${noun}${n === 1 ? "" : "s"}`;
export const shortNumber = (value) => String(Number(value.toPrecision(value < 0.1 ? 2 : 3)));
/** With a capital letter, except for a position: the axis is x. */
export const capital = (text) => (text.startsWith("x ") ? text : text[0].toUpperCase() + text.slice(1));
export const same = (x, y) => JSON.stringify(x) === JSON.stringify(y);

/**
 * A share as a percentage with two significant digits, rounded as by `format_share` in Python.
 * Without a whole (a score near zero has no shares) the value itself.
 */
export function percent(value, whole) {
  if (!whole) return formatSigned(value, decimals([value]));
  const size = Math.abs((100 * value) / whole);
  if (size < 0.0005) return "0 %";
  const text = size >= 9.95 ? formatNumber(size, 0) : size >= 0.995 ? size.toFixed(1) : String(Number(size.toPrecision(2)));
  return `${value < 0 ? "−" : ""}${text} %`;
}

/** '34 % of the score' or of what is specific to the two; the value itself where that is near zero. */
export const ofScore = (value, { whole, wholeName }) => percent(value, whole) + (whole ? ` of ${wholeName}` : "");

export const nounOf = (data, side) => {
  const nouns = (side ? [side] : ["a", "b"]).map((s) =>
    data[s].names ? (data[s].places ? "number" : "word") : data[s].places ? "region" : "part",
  );
  return nouns[0] === nouns.at(-1) ? nouns[0] : "part";
};

/** Whether both inputs are scanned tables, whose regions are numbers: named by their digits, and areas of an image. */
export const areTables = ({ a, b }) => Boolean(a.names && a.places && b.names && b.places);

const measure = ({ similarity, distance }) => (distance ? similarity : `${similarity} similarity`);
export const measureName = (data) => measure(data).replaceAll("_", " ");

/** 'x 25–50 %, y 0–33 %': the box around regions, in per cent of the image from its upper left corner, as `format_box`. */
function placeOf({ view }, set) {
  const size = [view.width, view.height];
  const edge = (d, pick) => {
    const at = pick(...set.map((i) => view.regions[i][d]));
    const share = (100 * Math.min(Math.max(at, 0), size[d % 2])) / size[d % 2];
    const near = Math.round(share);
    return near - share === 0.5 && near % 2 ? near - 1 : near; // halves to even, as in Python
  };
  return `x ${edge(0, Math.min)}–${edge(2, Math.max)} %, y ${edge(1, Math.min)}–${edge(3, Math.max)} %`;
}

/**
 * 'x 25–50 %, y 0–33 % of A': regions by name, by position in the image, or by number.
 * `limit`: maximum number of characters of a name.
 */
export function nameOf(data, side, set, limit = Infinity) {
  const { names, places, view } = data[side];
  const letter = side.toUpperCase();
  if (names) {
    const letters = [
      ...set
        .slice(0, 6)
        .map((i) => names[i])
        .join(" "),
    ];
    const cut = set.length > 6 || letters.length > limit;
    return `“${letters.slice(0, limit).join("")}${cut ? " …" : ""}” of ${letter}`;
  }
  if (view?.regions) {
    return `${placeOf(data[side], set)} of ${letter}`;
  }
  if (set.length > 1) return `${counted(set.length, nounOf(data, side))} of ${letter}`;
  const [i] = set;
  if (places?.grid) return `row ${Math.floor(i / places.grid[1]) + 1}, column ${(i % places.grid[1]) + 1} of ${letter}`;
  return `${nounOf(data, side)} ${i + 1} of ${letter}`;
}

/** The name above a side; "" for a text that is named by its own words. */
export function captionName(data, side) {
  const given = data.names?.[side === "a" ? 0 : 1] ?? "";
  const { view } = data[side];
  const same = view?.kind === "text" && view.text.split(/\s+/).join(" ").trim().startsWith(given.replace(/…$/, ""));
  return same ? "" : given;
}

/** A short name for a caption: 'x 25–50 %, y 0–33 %', “guitar”. */
export function shortName(data, side, set) {
  const { names, view } = data[side];
  if (names) {
    const different = [...new Set(set.map((i) => names[i]))];
    return `“${different.slice(0, 4).join(" ")}${different.length > 4 ? " …" : ""}”`;
  }
  return view?.regions ? placeOf(data[side], set) : counted(set.length, nounOf(data, side));
}

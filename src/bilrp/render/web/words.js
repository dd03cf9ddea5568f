// Numbers and regions in words.

/** Decimals that show the largest of these numbers to four digits: one column, one precision. */
export function decimals(values) {
  const top = Math.max(...values.map(Math.abs));
  return top > 0 ? Math.min(12, Math.max(0, 3 - Math.floor(Math.log10(top)))) : 0;
}

export const plain = (value, digits) =>
  `${value < 0 ? "−" : ""}${Math.abs(value).toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits })}`;
export const signed = (value, digits) => (value < 0 ? "" : "+") + plain(value, digits);

export function percent(value, whole) {
  if (!whole) return "—";
  const share = (100 * value) / whole;
  const size = Math.abs(share);
  const digits = size >= 100 ? 0 : size >= 1 ? 1 : size >= 0.095 ? 2 : 3;
  return size < 0.0005 ? "0 %" : `${share < 0 ? "−" : ""}${size.toFixed(digits)} %`;
}

export const nounOf = (data) => (data.a.names && data.b.names ? "word" : data.a.places && data.b.places ? "region" : "part");

/** 'row 3, column 5 of A': how a region is called, by name, by place, or by number. */
export function nameOf(data, side, i) {
  const { names, places } = data[side];
  const letter = side.toUpperCase();
  if (names) return `“${names[i]}” of ${letter}`;
  if (places?.grid) return `row ${Math.floor(i / places.grid[1]) + 1}, column ${(i % places.grid[1]) + 1} of ${letter}`;
  return `region ${i + 1} of ${letter}`;
}

export const isDistance = ({ similarity }) => /distance/.test(similarity);
export const measureName = (data) =>
  (isDistance(data) ? data.similarity : `${data.similarity} similarity`).replaceAll("_", " ");

export const capital = (text) => text[0].toUpperCase() + text.slice(1);
export const same = (x, y) => JSON.stringify(x) === JSON.stringify(y);

export const shortNumber = (value) => String(Number(value.toPrecision(value < 0.1 ? 2 : 3)));

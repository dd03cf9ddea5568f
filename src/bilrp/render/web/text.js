// @ts-check
// Lay out words in lines. Uses the DOM only to measure a word.

const HIGH = 30; // height of a word's box
const LEADING = 14; // between lines, where ribbons run
const PAD = 4; // left and right of a word, inside its box
const SPACE = 6; // between two boxes
export const GUTTER = 20; // right of a text above another, where ribbons run down

/** Whether a region is a special token, which has no characters in the text. */
export const isMark = ({ view }, i) => view?.kind === "text" && !view.spans[i];

/** The text in order: [{text, i, space}], i the region, null for text between regions (mostly punctuation). */
export function pieces({ names, view, count }) {
  const words = names ?? Array.from({ length: count }, (_, i) => `${i + 1}`);
  if (view?.kind !== "text") return words.map((text, i) => ({ text, i, space: true }));
  const list = [];
  const letters = Array.from(view.text); // code points, as Python counts them
  const cut = (from, until) => letters.slice(from, until).join("");
  let at = 0;
  const between = (stop) => {
    const gap = cut(at, stop);
    if (gap.trim()) list.push({ text: gap.trim(), i: null, space: /^\s/.test(gap) });
    at = stop;
    return gap;
  };
  view.spans.forEach((span, i) => {
    if (!span || span[0] < at) return list.push({ text: words[i], i, space: true }); // a special token
    const gap = between(span[0]);
    list.push({ text: cut(...span), i, space: list.length > 0 && /\s$/.test(gap) });
    at = span[1];
    return list;
  });
  between(letters.length);
  return list;
}

/** Boxes of the words, line by line: {width, height, boxes, lines, loose} with [top, left, bottom, right] for each. */
export function flowWords(side, width, measure) {
  const boxes = Array.from({ length: side.count }, () => [0, 0, 0, 0]);
  const [loose, labels, lines] = [[], [], Array.from({ length: side.count }, () => 0)];
  let [x, line, widest] = [0, 0, 0];
  const all = pieces(side).map(({ text, i, space }) => ({
    text,
    i,
    close: space ? 0 : i === null ? PAD + SPACE - 2 : SPACE, // punctuation is next to its word,
    w: Math.min(width, Math.ceil(measure(text)) + (i === null ? 0 : 2 * PAD)),
  }));
  for (const [k, { text, i, close, w }] of all.entries()) {
    let reach = x - close + w;
    for (let n = k + 1; all[n]?.close; n++) reach += SPACE - all[n].close + all[n].w; // and never begins a line
    if (x && reach > width) [x, line] = [0, line + 1];
    else if (x) x -= close;
    const top = line * (HIGH + LEADING);
    const box = [top, x, top + HIGH, x + w];
    if (i === null) loose.push({ text, box });
    else [boxes[i], lines[i], labels[i]] = [box, line, text];
    x += w + SPACE;
    widest = Math.max(widest, x - SPACE);
  }
  return { width: Math.max(widest, 40), height: (line + 1) * (HIGH + LEADING) - LEADING / 2 + 2, boxes, lines, loose, labels };
}

/**
 * The path from words of one line to the other side. Straight if nothing is in between; else along the space between the
 * lines to the edge of the text, so that it crosses no word.
 * @param {any} shape
 * @param {{ words: number[], box: number[] }} run
 * @param {string} side
 * @param {boolean} stacked
 */
export function exitPath({ width, height, lines }, run, side, stacked) {
  const {
    words: [first],
    box: [top, left, bottom, right],
  } = run;
  const x = (left + right) / 2;
  const free = lines[first] === (side === "a" ? Math.max(...lines) : 0);
  if (stacked && free) return [[x, side === "a" ? bottom : top]];
  const lane = bottom + LEADING / 2;
  const edge = stacked ? width + GUTTER / 2 : side === "a" ? width : 0;
  const way = [
    [x, bottom],
    [x, lane],
    [edge, lane],
  ];
  return stacked ? [...way, [edge, side === "a" ? height : 0]] : way;
}

/**
 * Runs of consecutive words in one line, each with its box.
 * @returns {{ words: number[], box: number[] }[]}
 */
export function runsOf({ boxes, lines }, chosen) {
  const runs = [];
  for (const i of [...chosen].sort((x, y) => x - y)) {
    const last = runs.at(-1);
    if (last && last.words.at(-1) === i - 1 && lines[i] === lines[i - 1]) {
      last.words.push(i);
      last.box = [last.box[0], last.box[1], last.box[2], boxes[i][3]];
    } else runs.push({ words: [i], box: boxes[i] });
  }
  return runs;
}

// Words in lines: regions without a place in a picture. No document needed, but for measuring a word.

const HIGH = 30; // of a word's box
const LEADING = 14; // between lines: room for what joins words of other lines
const PAD = 4; // beside a word, inside its box
const SPACE = 6; // between two boxes
export const GUTTER = 20; // beside a text that stands above another: ways to the other go down there

/** Is a region a mark of the tokenizer's own, that stands for no letters of the text? */
export const isMark = ({ view }, i) => view?.kind === "text" && !view.spans[i];

/** The text in order: [{text, i, space}], i the region, null for what lies between regions (punctuation, mostly). */
export function pieces({ names, view, count }) {
  const words = names ?? Array.from({ length: count }, (_, i) => `${i + 1}`);
  if (view?.kind !== "text") return words.map((text, i) => ({ text, i, space: true }));
  const found = [];
  const letters = Array.from(view.text); // as Python counts them: a letter beyond the first 65,536 is one
  const cut = (from, until) => letters.slice(from, until).join("");
  let at = 0;
  const between = (stop) => {
    const gap = cut(at, stop);
    if (gap.trim()) found.push({ text: gap.trim(), i: null, space: /^\s/.test(gap) });
    at = stop;
    return gap;
  };
  view.spans.forEach((span, i) => {
    if (!span || span[0] < at) return found.push({ text: words[i], i, space: true }); // a mark of the tokenizer's own
    const gap = between(span[0]);
    found.push({ text: cut(...span), i, space: found.length > 0 && /\s$/.test(gap) });
    at = span[1];
    return found;
  });
  between(letters.length);
  return found;
}

/** Boxes of the words, line by line: {width, height, boxes, lines, loose} with [top, left, bottom, right] for each. */
export function flowWords(side, width, measure) {
  const boxes = Array.from({ length: side.count }, () => [0, 0, 0, 0]);
  const [loose, labels, lines] = [[], [], Array.from({ length: side.count }, () => 0)];
  let [x, line, widest] = [0, 0, 0];
  const all = pieces(side).map(({ text, i, space }) => ({
    text,
    i,
    close: space ? 0 : i === null ? PAD + SPACE - 2 : SPACE, // punctuation stands close to its word,
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
 * The way from words of one line to the other side: [where it leaves the words, …]. Straight where nothing is in between;
 * else down between the lines and along them to the edge of the text, so that no word is struck through.
 */
export function wayOut({ width, height, lines }, { words: [first], box: [top, left, bottom, right] }, side, stacked) {
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

/** Words that stand next to each other in one line as one box: [[words], box] for each such run. */
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

// @ts-check
// A text as it was written: its words coloured by what they contribute, markdown readable without being interpreted.

import { node } from "../page/dom.js";
import { formatScore } from "../page/words.js";
import { strengths } from "./heat.js";

/** Patterns of markdown: characters that only mark something up are dimmed, code and headings look like what they are. */
const MARKUP = [
  { look: "head", whole: /^#{1,6} .*$/gm },
  { look: "mark", whole: /^(#{1,6} |>+ ?|[-*+] (?=\S)|[=~^-]{3,}|```.*)/gm },
  { look: "code", whole: /^```.*\n[^]*?^```/gm },
  { look: "code", whole: /(?<!`)(`+)(?!`)[^\n]*?[^`\n]\1(?!`)/g },
  { look: "mark", whole: /\*\*|__|`+/g },
  { look: "mark", whole: /\]\([^)\s]*\)|!?\[(?=[^\]\n]*\]\()/g },
];

/** The looks of each UTF-16 unit of a text. */
function looksOf(text) {
  /** @type {Set<string>[]} */
  const looks = Array.from({ length: text.length }, () => new Set());
  for (const { look, whole } of MARKUP)
    for (const match of text.matchAll(whole)) for (let k = match.index; k < match.index + match[0].length; k++) looks[k].add(look);
  return looks;
}

/** UTF-16 offsets of spans, whose offsets count code points. */
function unitsOf(text, spans) {
  const at = [0];
  for (const letter of text) at.push(at[at.length - 1] + letter.length);
  return spans.map(({ start, end }) => [at[start] ?? text.length, at[end] ?? text.length]);
}

/**
 * A text with the background of each span coloured by its weight; no markup of the text is interpreted.
 * @param {string} text
 * @param {{ start: number, end: number, weight: number }[]} spans characters, counted in code points
 * @param {string} label accessible description of the colours
 */
export function passage(text, spans, label) {
  const looks = looksOf(text);
  const shown = strengths(spans.map(({ weight }) => weight));
  const owner = new Int32Array(text.length).fill(-1);
  unitsOf(text, spans).forEach(([from, to], k) => owner.fill(k, from, to));
  const pieces = [];
  for (let from = 0; from < text.length; ) {
    let to = from + 1;
    const key = [...looks[from]].join(" ");
    while (to < text.length && owner[to] === owner[from] && [...looks[to]].join(" ") === key) to++;
    const el = node("span", { class: key || null }, text.slice(from, to));
    const strength = shown[owner[from]] ?? 0;
    if (strength) {
      const sign = strength > 0 ? "positive" : "negative";
      el.style.background = `color-mix(in srgb, var(--${sign}) ${Math.round(60 * Math.abs(strength))}%, transparent)`;
      el.title = formatScore(spans[owner[from]].weight);
    }
    pieces.push(el);
    from = to;
  }
  return node("p", { class: "passage", "aria-label": label }, ...pieces);
}

/**
 * A passage that shows its beginning, with a button for the whole text where there is more.
 * @param {HTMLElement} place
 * @param {HTMLElement} content
 */
export function fold(place, content) {
  const open = place.dataset.open === "yes";
  content.classList.toggle("folded", !open);
  const button = node("button", { type: "button", class: "unfold" }, open ? "Show less" : "Show the whole text");
  button.addEventListener("click", () => {
    place.dataset.open = place.dataset.open === "yes" ? "no" : "yes";
    fold(place, content);
  });
  place.replaceChildren(content, button);
  button.hidden = !open && content.scrollHeight <= content.clientHeight + 4;
}

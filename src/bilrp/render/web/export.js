// Saving what is seen: the present view as an SVG or PNG file.

import { ACCOUNT, accountDigits } from "./account.js";
import { node, SVG } from "./dom.js";
import { union, view } from "./geometry.js";
import { arcPoints, colours, DASH } from "./paint.js";
import { activeOf, describe, sceneOf } from "./scene.js";
import { measureName, plain, shortNumber, signed } from "./words.js";

const escape = (text) => String(text).replace(/[&<>"']/g, (c) => `&#${c.charCodeAt(0)};`);
const round = (x) => Number(x.toFixed(2));

function figurePanel(app, side, scene, ink) {
  const panel = app.layout.panels[side];
  const { shape } = panel;
  const { picture, names } = app.model.data[side];
  const [vx, vy, vw, vh] = view(panel, app.state.zoom[side]);
  const whole = `width="${shape.width}" height="${shape.height}"`;
  const values = scene.light[side];
  const [grey, veil] = values ? [0, ink.veil] : scene.active || !scene.arcs.length ? [1, 0] : [0.35, 0.3];
  const filter = `<filter id="grey-${side}"><feColorMatrix type="saturate" values="${grey}"/></filter>`;
  const parts = [
    picture
      ? `${filter}<image ${whole} preserveAspectRatio="none" filter="url(#grey-${side})" href="${picture}"/>`
      : "",
  ];
  if (picture) parts.push(`<rect ${whole} fill="${ink.paper}" fill-opacity="${veil}"/>`);
  shape.paths.forEach((d, i) => {
    const value = values?.[i] ?? 0;
    if (!value && !shape.words) return;
    parts.push(
      `<path d="${d}" fill="${value < 0 ? ink.negative : ink.positive}" fill-opacity="${round(0.88 * Math.abs(value))}" fill-rule="evenodd" stroke="${shape.words ? ink.rule : "none"}" vector-effect="non-scaling-stroke"/>`,
    );
    if (shape.words)
      parts.push(
        `<text x="${round(shape.centres[i][0])}" y="${round(shape.centres[i][1])}" text-anchor="middle" dominant-baseline="central" font-size="16" fill="${ink.ink}">${escape(names ? names[i] : i + 1)}</text>`,
      );
  });
  const frame = union(shape, scene.chosen[side]);
  for (const [colour, width] of [
    ["#000", 4],
    ["#fff", 2],
  ])
    if (frame)
      parts.push(
        `<path d="${frame}" fill="none" stroke="${colour}" stroke-width="${width}" vector-effect="non-scaling-stroke"/>`,
      );
  return `<svg x="${round(panel.x)}" y="${round(panel.y)}" width="${round(panel.w)}" height="${round(panel.h)}" viewBox="${[vx, vy, vw, vh].map(round).join(" ")}" preserveAspectRatio="none">${parts.join("")}</svg>`;
}

/** Words broken into lines of at most this width. */
function wrapped(words, width, font) {
  const pen = document.createElement("canvas").getContext("2d");
  pen.font = font;
  const lines = [""];
  for (const word of words.split(" ")) {
    const longer = lines.at(-1) ? `${lines.at(-1)} ${word}` : word;
    if (lines.at(-1) && pen.measureText(longer).width > width) lines.push(word);
    else lines[lines.length - 1] = longer;
  }
  return lines;
}

function figureArc(app, one, ink) {
  const [ax, ay, c, d, e, f, bx, by] = arcPoints(app, one).map(round);
  const dash = ink.safe && one.value < 0 ? ` stroke-dasharray="${DASH}"` : "";
  return `<path d="M${ax} ${ay}C${c} ${d} ${e} ${f} ${bx} ${by}" stroke="${one.value > 0 ? ink.positive : ink.negative}" stroke-opacity="${Number(one.alpha.toPrecision(3))}"${dash}/>`;
}

/** Under the picture: what it shows, then the account and how it was drawn. */
function figureNotes(app) {
  const { account } = app.model.data;
  const digits = accountDigits(account);
  const { l, h, p } = app.state.drawing;
  const parts = ACCOUNT.filter(([name]) => name in account && name !== "score");
  const spelt = parts.map(([name, label]) => `${signed(account[name], digits)} ${label}`);
  const total = `${spelt.join(", ")} = ${plain(account.score, digits)} ${measureName(app.model.data)} · l ${shortNumber(l)}, h ${shortNumber(h)}, p ${shortNumber(p)} · bilrp`;
  const told = activeOf(app) ? wrapped(describe(app), app.layout.size[0], "14px system-ui, sans-serif") : [];
  return [
    ...told.map((words) => [words, 'font-size="14"']),
    ...wrapped(total, app.layout.size[0], "12px system-ui, sans-serif").map((words) => [
      words,
      'font-size="12" opacity="0.7"',
    ]),
  ];
}

/** The present view as an SVG file: pictures inside, colours resolved, the account underneath. */
function figure(app) {
  const scene = sceneOf(app);
  const ink = colours(app);
  const [width, height] = app.layout.size;
  const notes = figureNotes(app);
  const text = (x, y, words, more) =>
    `<text x="${round(x)}" y="${round(y)}" fill="${ink.ink}" ${more}>${escape(words)}</text>`;
  const all = height + 96 + 21 * notes.length;
  return [
    `<svg xmlns="${SVG}" width="${width + 48}" height="${all}" viewBox="-24 -56 ${width + 48} ${all}" font-family="system-ui, sans-serif">`,
    `<title>${escape(app.model.data.title)}</title><rect x="-24" y="-56" width="100%" height="100%" fill="${ink.paper}"/>`,
    text(0, -20, app.model.data.title, 'font-size="22" font-weight="600"'),
    ...["a", "b"].map((side) =>
      text(app.layout.panels[side].x, app.layout.panels[side].y - 10, side.toUpperCase(), 'font-size="15" font-weight="600"'),
    ),
    ...["a", "b"].map((side) => figurePanel(app, side, scene, ink)),
    `<g fill="none" stroke-width="1.3" stroke-linecap="round">${scene.arcs.map((one) => figureArc(app, one, ink)).join("")}</g>`,
    ...notes.map(([words, more], k) => text(0, height + 26 + 21 * k, words, more)),
    "</svg>",
  ].join("\n");
}

function download(blob, ending) {
  const link = node("a", { href: URL.createObjectURL(blob), download: `bilrp.${ending}` });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

async function savePng(app) {
  const image = new Image();
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(figure(app))}`;
  await image.decode();
  const canvas = node("canvas", { width: 2 * image.width, height: 2 * image.height });
  canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
  canvas.toBlob((blob) => download(blob, "png"));
}

export function save(app, kind) {
  if (kind === "svg") download(new Blob([figure(app)], { type: "image/svg+xml" }), "svg");
  else savePng(app);
}

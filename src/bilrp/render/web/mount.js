// @ts-check
// mount(root, payload) → { ready, update, destroy }: an interactive explanation in its own shadow root.

import { buildBreakdown } from "./breakdown.js";
import { listenControls, setLook, showControls } from "./controls.js";
import { buildModel } from "./data.js";
import { node } from "./dom.js";
import { buildHeader } from "./header.js";
import { listenKeys } from "./keys.js";
import { createLinks } from "./links.js";
import { listAll } from "./matches.js";
import { relayout } from "./paint.js";
import { createCaption, createPanel } from "./panels.js";
import { listenPointer } from "./pointer.js";
import { longestSentences } from "./scene.js";
import { SKELETON } from "./skeleton.js";
import { STAGE_STYLE } from "./stage_style.js";
import { STYLE } from "./style.js";
import { THEME } from "./theme.js";

const VERSION = 1; // of the payload this page can draw

/** The initial state; a payload with a style starts with Algorithm 1 of the paper. */
const startState = ({ findings, differences, style, styles, drawing, show }) => ({
  draw: style ? "pairs" : show === "differences" && differences?.length ? "differences" : findings?.length ? "findings" : "pairs",
  plain: false, // all colours hidden
  paper: Boolean(style),
  drawing: { ...(styles[style] ?? drawing) },
  shown: { positive: true, negative: true },
  zoom: { a: { k: 1 }, b: { k: 1 } },
  pinned: null, // selected until Escape
  listed: null, // selection whose partners are listed
  preview: null, // under the pointer or with keyboard focus
  peek: null, // a hovered list entry
  probe: null, // the hovered region, described in addition to the pinned selection
  anchor: null, // where a selection with Shift started
});

const PARTS = ["summary", "stage", "readout", "reserve", "legend", "findings", "controls", "breakdown", "explained", "listed", "matches"];

/**
 * The elements of the page by name.
 * @returns {any}
 */
function findParts(page) {
  const find = (name) => page.querySelector(`.${name}`);
  const parts = Object.fromEntries(
    [...PARTS, "carried", "differs", "warned", "tally", "switch", "lead", "facts"].map((name) => [name, find(name)]),
  );
  const [title, figure] = ["h1", "figure"].map((name) => page.querySelector(name));
  return { page, title, figure, entries: [], ...parts };
}

/** Layers from back to front: images, links, words, badges. */
function buildStage(model, stage) {
  const panels = { a: createPanel(model, "a"), b: createPanel(model, "b") };
  const captions = { a: createCaption(model, "a"), b: createCaption(model, "b") };
  const { links, ...joins } = createLinks();
  const layer = (words) => ["a", "b"].filter((s) => !model.data[s].places === words).map((s) => panels[s].root);
  const about = { class: "scene", role: "group", "aria-label": "The two inputs" };
  const svg = node("svg:svg", about, ...layer(false), links, ...layer(true), joins.badges);
  stage.replaceChildren(svg, captions.a.el, captions.b.el); // in this order: Tab reaches a region first
  return { svg, panels, captions, ...joins };
}

async function decodeImage(source) {
  const image = new Image();
  image.src = source;
  await image.decode();
  return image;
}

/** Build the page of one payload; the signal removes its listeners outside of its own elements. */
async function start(shadow, data, look, signal) {
  if (data.version !== VERSION)
    throw new Error(`this page reads payload version ${VERSION}, got ${data.version}: create both with the same version of bilrp`);
  const model = await buildModel(data);
  if (signal.aborted) return;
  const holder = node("template");
  holder.innerHTML = SKELETON;
  const page = holder.content.firstElementChild;
  const dom = findParts(page);
  Object.assign(dom, buildStage(model, dom.stage));
  const source = (side) => data[side].places && data[side].view?.src;
  const pictures = Object.fromEntries(["a", "b"].map((side) => [side, source(side) && decodeImage(source(side))]));
  const app = { model, state: startState(data), dom, layout: null, pictures, signal, compact: Boolean(data.compact) };
  const { elements } = dom.controls;
  elements.safe.checked = look.palette === "safe";
  elements.theme.value = look.theme;
  for (const [k, list] of [model.findings, model.differences].entries())
    if (!list.length) elements.draw[k].parentElement.hidden = dom.switch.children[k].hidden = true;
  page.classList.toggle("compact", app.compact);
  page.classList.toggle("framed", data.compact === "frame");
  page.querySelector(".more").open = !app.compact;
  page.querySelector(".paper").open = app.state.paper;
  buildHeader(model, dom);
  app.showChosen = buildBreakdown(model, dom.breakdown, dom.explained);
  shadow.replaceChildren(page);
  Object.assign(page.dataset, look);
  dom.reserve.replaceChildren(...longestSentences(app).map((sentence) => node("p", {}, sentence)));
  relayout(app);
  showControls(app);
  setLook(app, look);
  listAll(app);
  if (app.compact) relayout(app); // the heights of the other elements are known now
  listenPointer(app);
  listenKeys(app);
  listenControls(app);
  let width = dom.stage.clientWidth;
  const observer = new ResizeObserver(() => {
    if (dom.stage.clientWidth === width) return; // only the height changed
    width = dom.stage.clientWidth;
    relayout(app);
    listAll(app);
  });
  observer.observe(dom.stage);
  signal.addEventListener("abort", () => observer.disconnect());
}

/**
 * Show a payload (`bilrp.render.page.build_payload`) inside `root`. A document may contain several.
 * `update` replaces the payload, `destroy` empties `root`, and `ready` is a promise of the first paint.
 * @param {Element} root
 */
export function mount(root, payload) {
  const shadow = root.shadowRoot ?? root.attachShadow({ mode: "open" });
  const sheet = new CSSStyleSheet();
  sheet.replaceSync(THEME + STYLE + STAGE_STYLE);
  shadow.adoptedStyleSheets = [sheet];
  let life = new AbortController();
  const show = (data) => {
    const { theme, palette } = /** @type {any} */ (shadow.querySelector(".page"))?.dataset ?? {};
    life.abort();
    life = new AbortController();
    handle.ready = start(shadow, data, { theme: theme ?? "auto", palette: palette ?? data.palette ?? "paper" }, life.signal);
    handle.ready.catch((error) => shadow.replaceChildren(node("p", { class: "failed", role: "alert" }, error.message)));
    return handle;
  };
  const handle = {
    /** @type {Promise<void>} */
    ready: Promise.resolve(),
    update: show,
    destroy() {
      life.abort();
      shadow.replaceChildren();
    },
  };
  return show(payload);
}

// mount(root, payload) → { ready, update, destroy }: one explanation to explore, inside a shadow root of its own.

import { buildAccount } from "./account.js";
import { listenControls, setLook, showControls } from "./controls.js";
import { modelOf } from "./data.js";
import { node } from "./dom.js";
import { buildHeader } from "./header.js";
import { listenKeys } from "./keys.js";
import { createLinks } from "./links.js";
import { listAll } from "./matches.js";
import { place } from "./paint.js";
import { createCaption, createPanel } from "./panels.js";
import { listenPointer } from "./pointer.js";
import { longestSentences } from "./scene.js";
import { SKELETON } from "./skeleton.js";
import { STAGE_STYLE } from "./stage_style.js";
import { STYLE } from "./style.js";
import { THEME } from "./theme.js";

const VERSION = 1; // of the payload this page can draw

/** What a reader can change, as it is at the start. A style that was asked for is the paper's way to draw. */
const startState = ({ findings, style, styles, drawing }) => ({
  draw: findings?.length && !style ? "findings" : "pairs",
  paper: Boolean(style),
  drawing: { ...(styles[style] ?? drawing) },
  shown: { positive: true, negative: true },
  zoom: { a: { k: 1 }, b: { k: 1 } },
  pinned: null, // chosen for good, until Escape
  listed: null, // whose partners are listed
  preview: null, // under the pointer or the keyboard's focus
  peek: null, // an entry of a list under the pointer
  probe: null, // the region the readout speaks of, beside what is pinned
  anchor: null, // where Shift and arrows began
});

const PARTS = ["summary", "stage", "readout", "reserve", "legend", "found", "controls", "account", "explained", "listed", "matches"];

/** The elements that are filled or listened to, by name. */
function findParts(page) {
  const find = (name) => page.querySelector(`.${name}`);
  const parts = Object.fromEntries([...PARTS, "lead", "facts"].map((name) => [name, find(name)]));
  const [title, figure] = ["h1", "figure"].map((name) => page.querySelector(name));
  return { page, title, figure, entries: [], ...parts };
}

/** From back to front: photographs, what joins the two sides, words (which nothing strikes through), numbers. */
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

async function decoded(source) {
  const image = new Image();
  image.src = source;
  await image.decode();
  return image;
}

/** Build everything for one payload; what it listens to beyond its own elements ends with the signal. */
async function start(shadow, data, look, signal) {
  if (data.version !== VERSION)
    throw new Error(`this page draws payloads of version ${VERSION}, not ${data.version}: make both with one bilrp`);
  const model = await modelOf(data);
  if (signal.aborted) return;
  const holder = node("template");
  holder.innerHTML = SKELETON;
  const page = holder.content.firstElementChild;
  const dom = findParts(page);
  Object.assign(dom, buildStage(model, dom.stage));
  const source = (side) => data[side].places && data[side].view?.src;
  const pictures = Object.fromEntries(["a", "b"].map((side) => [side, source(side) && decoded(source(side))]));
  const app = { model, state: startState(data), dom, layout: null, pictures, signal, compact: Boolean(data.compact) };
  const { elements } = dom.controls;
  elements.safe.checked = look.palette === "safe";
  elements.theme.value = look.theme;
  if (!model.findings.length) elements.draw[0].parentElement.hidden = true;
  page.classList.toggle("compact", app.compact);
  page.querySelector(".more").open = !app.compact;
  page.querySelector(".paper").open = app.state.paper;
  buildHeader(model, dom);
  app.showChosen = buildAccount(model, dom.account, dom.explained);
  shadow.replaceChildren(page);
  Object.assign(page.dataset, look);
  dom.reserve.replaceChildren(...longestSentences(app).map((sentence) => node("p", {}, sentence)));
  place(app);
  showControls(app);
  setLook(app, look);
  listAll(app);
  if (app.compact) place(app); // now that everything else has its height
  listenPointer(app);
  listenKeys(app);
  listenControls(app);
  let width = dom.stage.clientWidth;
  const observer = new ResizeObserver(() => {
    if (dom.stage.clientWidth === width) return; // our own change of height
    width = dom.stage.clientWidth;
    place(app);
    listAll(app);
  });
  observer.observe(dom.stage);
  signal.addEventListener("abort", () => observer.disconnect());
}

/**
 * Show a payload (`bilrp.render.page.build_payload`) inside `root`. Several may live on one document.
 * `update` shows another one in its place, `destroy` leaves `root` empty; `ready` tells when it is drawn.
 */
export function mount(root, payload) {
  const shadow = root.shadowRoot ?? root.attachShadow({ mode: "open" });
  const sheet = new CSSStyleSheet();
  sheet.replaceSync(THEME + STYLE + STAGE_STYLE);
  shadow.adoptedStyleSheets = [sheet];
  let life = new AbortController();
  const show = (data) => {
    const { theme, palette } = shadow.querySelector(".page")?.dataset ?? {};
    life.abort();
    life = new AbortController();
    handle.ready = start(shadow, data, { theme: theme ?? "auto", palette: palette ?? data.palette ?? "paper" }, life.signal);
    handle.ready.catch((error) => shadow.replaceChildren(node("p", { class: "failed", role: "alert" }, error.message)));
    return handle;
  };
  const handle = {
    update: show,
    destroy() {
      life.abort();
      shadow.replaceChildren();
    },
  };
  return show(payload);
}

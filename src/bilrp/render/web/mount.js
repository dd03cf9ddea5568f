// mount(root, payload) → { ready, update, destroy }: one explanation to explore, inside a shadow root of its own.

import { buildAccount } from "./account.js";
import { listenControls, showDrawing } from "./controls.js";
import { modelOf } from "./data.js";
import { node } from "./dom.js";
import { buildHeader } from "./header.js";
import { listenKeys } from "./keys.js";
import { listMatches } from "./matches.js";
import { place } from "./paint.js";
import { createCaption, createPanel } from "./panels.js";
import { listenPointer } from "./pointer.js";
import { SKELETON } from "./skeleton.js";
import { STAGE_STYLE } from "./stage_style.js";
import { STYLE } from "./style.js";
import { THEME } from "./theme.js";

const VERSION = 1; // of the payload this page can draw

/** What a reader can change, as it is at the start. */
const startState = (data) => ({
  drawing: { ...(data.styles[data.style] ?? data.drawing) },
  shown: { positive: true, negative: true, arcs: true, heat: false },
  zoom: { a: { k: 1 }, b: { k: 1 } },
  pinned: null, // chosen for good, until Escape
  listed: null, // whose partners are listed
  preview: null, // under the pointer or the keyboard's focus
  peek: null, // an entry of the list under the pointer
  probe: null, // the region the readout speaks of, beside what is pinned
  anchor: null, // where Shift and arrows began
});

/** The elements that are filled or listened to, by name. */
function findParts(page) {
  const names = ["lead", "total", "stage", "readout", "controls", "account", "explained", "listed", "matches", "facts"];
  const parts = Object.fromEntries(names.map((name) => [name, page.querySelector(`.${name}`)]));
  return { page, title: page.querySelector("h1"), items: [], ...parts };
}

function buildStage(model, stage) {
  const nodes = { a: createPanel(model, "a"), b: createPanel(model, "b") };
  const captions = { a: createCaption(model, "a"), b: createCaption(model, "b") };
  const about = { class: "scene", role: "group", "aria-label": "The two inputs" };
  const svg = node("svg:svg", about, nodes.a.root, nodes.b.root);
  const canvas = node("canvas", { "aria-hidden": "true" });
  stage.replaceChildren(captions.a.el, captions.b.el, svg, canvas);
  return { svg, canvas, nodes, captions };
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
  Object.assign(page.dataset, look);
  const dom = findParts(page);
  Object.assign(dom, buildStage(model, dom.stage));
  const pictures = Object.fromEntries(["a", "b"].map((s) => [s, data[s].picture && decoded(data[s].picture)]));
  const state = startState(data);
  const app = { model, state, dom, layout: {}, pictures, signal, matches: [], least: {} };
  dom.controls.elements.safe.checked = look.palette === "safe";
  dom.controls.elements.theme.value = look.theme;
  buildHeader(model, dom);
  app.showChosen = buildAccount(model, dom.account, dom.explained);
  shadow.replaceChildren(page);
  showDrawing(app);
  place(app);
  listMatches(app);
  listenPointer(app);
  listenKeys(app);
  listenControls(app);
  let width = dom.stage.clientWidth;
  const observer = new ResizeObserver(() => {
    if (dom.stage.clientWidth === width) return; // our own change of height
    width = dom.stage.clientWidth;
    place(app);
  });
  observer.observe(dom.stage);
  signal.addEventListener("abort", () => observer.disconnect());
}

/**
 * Show a payload (`bilrp.render.page.payload`) inside `root`. Several may live on one document.
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

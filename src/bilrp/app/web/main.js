// @ts-check
// Entry point of the app: navigation bar, one view at a time by URL, and queries by upload, drop or paste.

import { node } from "../page/dom.js";
import { THEME } from "../page/theme.js";
import * as address from "./address.js";
import { bring, Failed, fetched } from "./api.js";
import { atlas } from "./atlas.js";
import { audit } from "./audit.js";
import { contrast } from "./contrast.js";
import { group } from "./group.js";
import { collection } from "./grid.js";
import { item } from "./item.js";
import { live } from "./live.js";
import { pair } from "./pair.js";
import { repair } from "./repair.js";
import { textItem } from "./text_item.js";

/** A text opens with its neighbours coloured; to choose words, it is taken apart, as images are. */
const itemOrText = (root, at) =>
  at.about.kind === "text" && !(at.said.choose || at.said.part || at.said.without) ? textItem(root, at) : item(root, at);
const VIEWS = { collection, map: atlas, item: itemOrText, pair, contrast, group, audit, repair };
const LOOKS = { theme: "auto", palette: "paper" };

const sheet = new CSSStyleSheet();
sheet.replaceSync(THEME);
document.adoptedStyleSheets = [sheet];

const main = document.querySelector("main");
const status = document.querySelector(".said");
export const say = (words) => (status.textContent = words);

function remembered(name) {
  try {
    return localStorage.getItem(`bilrp-${name}`) ?? LOOKS[name];
  } catch {
    return LOOKS[name]; // the browser blocks storage
  }
}

function look(name, value) {
  document.body.dataset[name] = value;
  try {
    localStorage.setItem(`bilrp-${name}`, value);
  } catch {
    // the browser blocks storage: the setting is valid in this tab only
  }
}

function buildBar(about) {
  const links = about.live
    ? []
    : [
        ["/", "Collection"],
        ["/map", "Map"],
        ["/contrast", "Contrast"],
        ["/audit", "Audit"],
      ];
  const nav = node("nav", { "aria-label": "Views" }, ...links.map(([href, name]) => node("a", { href }, name)));
  const option = ([value, words]) => node("option", { value }, words);
  const theme = node(
    "select",
    { "aria-label": "Theme" },
    ...[
      ["auto", "as the system"],
      ["light", "light"],
      ["dark", "dark"],
    ].map(option),
  );
  theme.value = document.body.dataset.theme;
  theme.addEventListener("change", () => look("theme", theme.value));
  const safe = node("input", { type: "checkbox" });
  safe.checked = document.body.dataset.palette === "safe";
  safe.addEventListener("change", () => look("palette", safe.checked ? "safe" : "paper"));
  const looks = node("div", { class: "looks" }, node("label", {}, safe, "colour-blind safe"), theme);
  const home = node("a", { href: "/", class: "home" }, node("b", {}, "bilrp"), " ", node("span", {}, about.name));
  document.querySelector(".bar").replaceChildren(home, nav, about.live ? "" : queryOf(about), looks);
}

/** The form for a query: an image file or a text, which is not added to the collection. */
function queryOf(about) {
  const form = node("form", { class: "query" });
  if (about.kind === "text") {
    const words = node("input", {
      type: "text",
      name: "text",
      placeholder: "Type or paste a text",
      "aria-label": "A text as a query",
      autocomplete: "off",
    });
    form.append(words);
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      if (words.value.trim()) brought(words.value, words.value.slice(0, 60));
    });
  } else {
    const file = node("input", { type: "file", accept: "image/*", id: "query-file" });
    const label = node("label", { for: "query-file", class: "file" }, file, "Ask with a picture of yours");
    file.addEventListener("change", () => file.files[0] && brought(file.files[0], file.files[0].name));
    form.append(label);
  }
  return form;
}

async function brought(content, name) {
  say(`Reading ${name} …`);
  try {
    const { id } = await bring(content, name);
    say("");
    address.go(address.item(id));
  } catch (error) {
    say(error.message);
  }
}

function listenDrops(kind) {
  addEventListener("dragover", (event) => event.preventDefault());
  addEventListener("drop", (event) => {
    event.preventDefault();
    const [file] = event.dataTransfer.files;
    const text = event.dataTransfer.getData("text/plain");
    if (file && kind === "image") brought(file, file.name);
    else if (text && kind === "text") brought(text, text.slice(0, 60));
  });
  addEventListener("paste", (event) => {
    if (/** @type {any} */ (event.target).closest?.("input, textarea")) return;
    const [file] = event.clipboardData.files;
    const text = event.clipboardData.getData("text/plain").trim();
    if (file && kind === "image") brought(file, file.name || "pasted");
    else if (text && kind === "text") brought(text, text.slice(0, 60));
  });
}

let life = new AbortController();

async function show(about, moved) {
  life.abort();
  life = new AbortController();
  const { signal } = life;
  const at = address.here();
  const view = about.live ? live : (VIEWS[at.view] ?? collection);
  for (const link of document.querySelectorAll(".bar nav a")) {
    const current = link.getAttribute("href") === location.pathname;
    if (current) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  say("");
  main.className = about.live ? "pair live" : at.view;
  main.replaceChildren(node("p", { class: "wait" }, "…"));
  scrollTo(0, 0);
  if (moved) main.focus({ preventScroll: true });
  try {
    await view(main, { about, signal, say, ...at });
    document.title = `${main.querySelector("h1")?.textContent ?? about.name} · bilrp`;
  } catch (error) {
    if (signal.aborted) return;
    const words = error instanceof Failed ? error.message : `Something went wrong: ${error.message}`;
    main.replaceChildren(
      node("h1", {}, "This cannot be shown"),
      node("p", { role: "alert" }, words),
      node("p", {}, node("a", { href: "/" }, "Back to the collection")),
    );
  }
}

async function start() {
  for (const name of Object.keys(LOOKS)) document.body.dataset[name] = remembered(name);
  const about = await fetched("/api/about");
  buildBar(about);
  if (!about.live) listenDrops(about.kind);
  addEventListener("popstate", () => show(about, true));
  document.addEventListener("click", (event) => {
    const link = /** @type {any} */ (event.target).closest?.("a[href^='/']");
    if (!link || link.hasAttribute("download") || event.button || event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    address.go(link.getAttribute("href"));
  });
  await show(about, false);
}

start().catch((error) => say(error.message));

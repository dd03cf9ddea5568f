// @ts-check
// One item, large, with its one-sided heat map, and its neighbours, ranked by the selected regions.

import { node } from "../page/dom.js";
import { counted, formatScore } from "../page/words.js";
import * as address from "./address.js";
import { ask, progress } from "./api.js";
import { createBoard } from "./board.js";
import { heat } from "./heat.js";

const SHOWN = 12;
const MORE = 48;
const AGAINST = 6; // number of neighbours whose mean the heat map of the item refers to

const HELP =
  "Brush or click parts to rank by them, with Shift to leave them out. By keyboard: arrows walk, Enter takes a part, Shift+Enter leaves it out, Shift+arrows brush, Escape clears.";

/** A sentence that says what the neighbours are ranked by. */
function words({ part, without }, kind) {
  const noun = kind === "text" ? "word" : "region";
  if (part.length) return `Ranked by ${counted(part.length, noun)}`;
  if (without.length) return `Ranked without ${counted(without.length, noun)}`;
  return "Ranked by the whole";
}

function card(near, number, { id, rival, kind, said }) {
  const place = node("div", { class: "shown" });
  if (kind === "image") place.append(node("img", { src: address.content(near.id, "thumbnail"), alt: "" }));
  else place.append(node("p", { class: "line" }, near.name));
  const open = node(
    "a",
    { class: "open", href: address.item(near.id, { by: said.by }), "aria-label": `${near.name}, score ${formatScore(near.score)}: open` },
    place,
  );
  const why = node("a", { class: "why", href: address.pair(id, near.id, { by: said.by }) }, "why");
  const versus = node(
    "button",
    { type: "button", class: "versus", "aria-pressed": rival === near.id, title: "Choose two neighbours: why this and not that?" },
    "versus",
  );
  const name = kind === "image" ? node("span", { class: "name", title: near.name }, near.name) : null;
  const about = node("div", { class: "about" }, node("b", {}, formatScore(near.score)), name, why, versus);
  const el = node("li", { "data-id": near.id, "aria-label": `${number + 1}: ${near.name}` }, open, about);
  return { el, place, versus };
}

/** The button that adds a query to the collection and then opens it as an item. */
function adding(id, { signal, say }) {
  const button = node("button", { type: "button", class: "add" }, "Add it to the collection");
  button.addEventListener("click", async () => {
    button.disabled = true;
    try {
      const added = await ask("/api/add", { id }, { signal, onProgress: (event) => say(progress(event)) });
      location.assign(address.item(added.id)); // reload: the number of items changed
    } catch (error) {
      button.disabled = false;
      if (!signal.aborted) say(error.message);
    }
  });
  return button;
}

export async function item(root, { about, rest: [id], said, signal, say }) {
  const kind = about.kind;
  const by = ["cosine", "dot"].includes(said.by) ? said.by : about.similarity;
  const written = (similarity) => (similarity === about.similarity ? "" : similarity); // in a URL: the default is left out
  const state = { part: address.unpacked(said.part), without: address.unpacked(said.without), count: SHOWN, near: [], rival: null };
  const heading = node("h1", {}, "…");
  const crumbs = node("p", { class: "lead" });
  const place = node("div", { class: "place" });
  if (kind === "image") place.append(node("img", { src: address.content(id, "picture"), alt: "" }));
  const note = node("p", { class: "note", role: "status" });
  const [only, whole] = [node("button", { type: "button" }, "Swap: only / without"), node("button", { type: "button" }, "Whole")];
  const measure = node(
    "select",
    { "aria-label": "Ranked by" },
    node("option", { value: "cosine" }, "cosine"),
    node("option", { value: "dot" }, "dot product"),
  );
  measure.value = by;
  const ranked = node("h2", {}, "Neighbours");
  const list = node("ol", { class: `near ${kind}` });
  const more = node("button", { type: "button", class: "more" }, "More neighbours");
  const left = node(
    "section",
    { class: "one", "aria-label": "The item" },
    place,
    note,
    node("div", { class: "actions" }, only, whole),
    node("p", { class: "help" }, HELP),
  );
  const right = node(
    "section",
    { class: "others", "aria-labelledby": "ranked" },
    node("div", { class: "ranking" }, ranked, measure),
    list,
    more,
  );
  ranked.id = "ranked";
  root.replaceChildren(node("header", {}, heading, crumbs), node("div", { class: "split" }, left, right));

  let board = null;
  let turn = new AbortController(); // of the current request
  let own = null; // values of the item's heat map with its first neighbours
  const here = () => address.item(id, { part: address.packed(state.part), without: address.packed(state.without), by: written(by) });

  const listed = () => {
    const cards = state.near.map((near, number) => card(near, number, { id, rival: state.rival, kind, said: { by: written(by) } }));
    list.replaceChildren(...cards.map(({ el }) => el));
    cards.forEach(({ versus }, k) => versus.addEventListener("click", () => choose(state.near[k].id)));
    more.hidden = state.count > SHOWN || state.near.length < SHOWN;
    ranked.textContent = words(state, kind);
    whole.disabled = only.disabled = !(state.part.length || state.without.length);
    return cards;
  };

  const choose = (other) => {
    if (state.rival && state.rival !== other)
      return address.go(address.to("/contrast", { item: id, first: `item:${state.rival}`, second: `item:${other}` }));
    state.rival = state.rival === other ? null : other;
    for (const el of list.children) el.querySelector(".versus").setAttribute("aria-pressed", el.dataset.id === state.rival);
    return say(state.rival ? "Choose another: why this one and not that?" : "");
  };

  /** Rank the neighbours, then load their heat maps one after the other; a new call aborts this one. */
  const rank = async (settled) => {
    turn.abort();
    turn = new AbortController();
    const life = AbortSignal.any([signal, turn.signal]);
    const question = { id, part: state.part, without: state.without };
    try {
      const onProgress = (event) => (note.textContent = progress(event));
      const answer = await ask("/api/neighbours", { ...question, k: state.count, similarity: by }, { signal: life, onProgress });
      state.near = answer.neighbours;
      const cards = listed();
      if (!settled || !board) return;
      if (!own) {
        const against = state.near.slice(0, AGAINST).map((near) => ({ id: near.id }));
        if (against.length) own = (await ask("/api/heat", { id, against, similarity: by }, { signal: life, onProgress })).values;
      }
      board.colour(state.part.length || state.without.length ? null : own);
      note.textContent =
        own && !state.part.length && !state.without.length ? "Coloured: what it has in common with its first neighbours." : "";
      for (const [k, near] of state.near.slice(0, SHOWN).entries()) {
        const answer = await ask("/api/heat", { id: near.id, against: [question], similarity: by }, { signal: life });
        const src = address.content(near.id, "thumbnail");
        cards[k].place.replaceChildren(heat(answer.side, answer.values, src, `Where ${near.name} has it`));
      }
      list.dataset.done = "yes";
    } catch (error) {
      if (!life.aborted) note.textContent = error.message;
    }
  };

  const become = ({ part, without }, done) => {
    Object.assign(state, { part, without });
    delete list.dataset.done;
    if (done) address.rewrite(here(), true); // one history entry per drag
    rank(done);
  };
  const both = (next) => {
    board?.set(next);
    become(next, true);
  };
  only.addEventListener("click", () => both({ part: state.without, without: state.part }));
  whole.addEventListener("click", () => both({ part: [], without: [] }));
  more.addEventListener("click", () => ((state.count = MORE), rank(true)));
  measure.addEventListener("change", () =>
    address.go(address.item(id, { part: address.packed(state.part), without: address.packed(state.without), by: written(measure.value) })),
  );

  const whole_ = state.part.length || state.without.length ? null : rank(false);
  note.textContent = "Taking it apart …";
  const side = await ask("/api/side", { id }, { signal, onProgress: (event) => (note.textContent = progress(event)) });
  heading.textContent = side.name;
  document.title = `${side.name} · bilrp`;
  if (side.group) crumbs.append("in ", node("a", { href: address.group(side.group) }, side.group));
  else if (id.startsWith("q")) crumbs.append("Your query; it is not in the collection. ", about.adds ? adding(id, { signal, say }) : "");
  board = createBoard(place, side, { src: address.content(id, "picture"), label: `Parts of ${side.name}`, changed: become });
  const known = (list) => list.filter((i) => i < side.count);
  Object.assign(state, { part: known(state.part), without: known(state.without) });
  board.set({ part: state.part, without: state.without });
  await whole_;
  rank(true);
}

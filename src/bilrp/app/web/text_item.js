// @ts-check
// One text and its neighbours: whole texts, coloured at once by one pull each; no parts are computed for that.

import { node } from "../page/dom.js";
import { counted, formatScore } from "../page/words.js";
import * as address from "./address.js";
import { ask, fetched, progress } from "./api.js";
import { conditions, filterControls } from "./filters.js";
import { fold, passage } from "./passage.js";

const SHOWN = 12;
const MORE = 24; // as many as the server highlights in one request

/** The mean weight of each span of the query over several highlights. */
function meanSpans(highlights) {
  return highlights[0].query.map((span, k) => ({
    ...span,
    weight: highlights.reduce((sum, { query }) => sum + query[k].weight, 0) / highlights.length,
  }));
}

/** What is known about a text: its group and metadata. */
function facts({ group, metadata }) {
  const rows = Object.entries(metadata).filter(([, value]) => value !== null && value !== "");
  const list = rows.map(([name, value]) => [node("dt", {}, name), node("dd", {}, String(value))]).flat();
  const from = group ? node("p", { class: "lead" }, "from ", node("a", { href: address.group(group) }, group)) : "";
  return [from, list.length ? node("dl", { class: "facts" }, ...list) : ""];
}

const OWN_ID = /^[0-9a-f]{32,64}$/; // of a collection; records have ids that mean something
const QUERY_ID = /^q[0-9a-f]{31}$/;

function card(near, number, { id, by, rival, choose }) {
  const place = node("div", { class: "shown" });
  fold(place, passage(near.text, [], near.name));
  const open = node("a", { class: "why", href: address.item(near.id, { by }) }, "open");
  const why = node("a", { class: "why", href: address.pair(id, near.id, { by }) }, "word by word");
  const versus = node(
    "button",
    { type: "button", class: "versus", "aria-pressed": rival === near.id, title: "Choose two: why this and not that?" },
    "versus",
  );
  versus.addEventListener("click", () => choose(near.id));
  const group = near.group ? node("a", { class: "from", href: address.group(near.group) }, near.group) : "";
  const called = OWN_ID.test(near.id) ? "" : node("span", { class: "from" }, near.id);
  const about = node("div", { class: "about" }, node("b", {}, formatScore(near.score)), called, group, open, why, versus);
  return { el: node("li", { "data-id": near.id, "aria-label": `${number + 1}: ${near.name}` }, about, place), place };
}

export async function textItem(root, { about, rest: [id], said, signal, say }) {
  const similarity = ["cosine", "dot"].includes(said.by) ? said.by : about.similarity;
  const by = similarity === about.similarity ? "" : similarity;
  const own = await fetched(address.content(id, "text"), signal);
  const isQuery = QUERY_ID.test(id);
  const state = { count: SHOWN, rival: null, filters: conditions(said.filters) };
  const place = node("div", { class: "place" }, passage(own.text, [], "The text"));
  const note = node("p", { class: "note", role: "status" }, "Looking for similar texts …");
  const list = node("ol", { class: "near text" });
  const more = node("button", { type: "button", class: "more", hidden: true }, "More neighbours");
  const words = node("a", { class: "button", href: address.item(id, { by, choose: "words" }) }, "Rank by some of its words");
  const filters = filterControls(about, state.filters, (next) =>
    address.go(address.item(id, { by, filters: next.length ? JSON.stringify(next) : "" })),
  );
  const title = isQuery ? "Your text" : "A text and its neighbours";
  root.replaceChildren(
    node("header", {}, node("h1", {}, title), node("p", { class: "lead key" }, "Red words make the two similar, blue words less so.")),
    node(
      "div",
      { class: "split" },
      node("section", { class: "one", "aria-label": "The text" }, place, ...facts(own), node("div", { class: "actions" }, words)),
      node("section", { class: "others", "aria-label": "Neighbours" }, node("h2", {}, "Most similar"), filters, note, list, more),
    ),
  );
  const choose = (other) => {
    if (state.rival && state.rival !== other)
      return address.go(address.to("/contrast", { item: id, first: `item:${state.rival}`, second: `item:${other}` }));
    state.rival = state.rival === other ? null : other;
    for (const el of list.children) el.querySelector(".versus").setAttribute("aria-pressed", el.dataset.id === state.rival);
    return say(state.rival ? "Choose another: why this one and not that?" : "");
  };
  const onProgress = (event) => (note.textContent = progress(event));
  const rank = async () => {
    const asked = { id, k: state.count, similarity, filters: state.filters };
    const { neighbours, of } = await ask("/api/neighbours", asked, { signal, onProgress });
    const cards = neighbours.map((near, number) => card(near, number, { id, by, rival: state.rival, choose }));
    list.replaceChildren(...cards.map(({ el }) => el));
    cards.forEach(({ place: at }) => fold(at, /** @type {HTMLElement} */ (at.firstElementChild))); // heights are known now
    more.hidden = state.count === MORE || neighbours.length < SHOWN;
    if (!neighbours.length) return (note.textContent = `None of ${counted(of, "text")} matches the filter.`);
    note.textContent = "Weighing the words …";
    const question = { id, hits: neighbours.map((near) => near.id), similarity };
    const onWeighing = (event) => (note.textContent = event.total ? "Weighing the words …" : progress(event));
    const { highlights } = await ask("/api/highlight", question, { signal, onProgress: onWeighing });
    highlights.forEach((hit, k) => fold(cards[k].place, passage(hit.text, hit.passage, `What ${hit.name} has in common with the text`)));
    place.replaceChildren(passage(own.text, meanSpans(highlights), "What the text has in common with its neighbours"));
    note.textContent = `${counted(neighbours.length, "text")} of ${of.toLocaleString("en")}, nearest first.`;
    list.dataset.done = "yes";
    return undefined;
  };
  more.addEventListener("click", () => {
    state.count = MORE;
    rank().catch((error) => signal.aborted || (note.textContent = error.message));
  });
  await rank();
}

// @ts-check
// A pair: its interactive explanation, downloads, and an occlusion test that compares it with the model's own score.

import { node } from "../page/dom.js";
import { mount } from "../page/mount.js";
import { formatScore } from "../page/words.js";
import * as address from "./address.js";
import { ask, progress } from "./api.js";
import { createBoard } from "./board.js";

export async function pair(root, { about, rest: [a, b], said, signal }) {
  const similarity = ["cosine", "dot"].includes(said.by) ? said.by : about.similarity;
  const wait = node("p", { class: "wait", role: "status" }, "Taking both apart …");
  root.replaceChildren(wait);
  const payload = await ask("/api/pair", { a, b, similarity }, { signal, onProgress: (event) => (wait.textContent = progress(event)) });
  const [one, other] = payload.names ?? ["A", "B"];
  const by = similarity === about.similarity ? "" : similarity;
  const query = (kind) => address.to(`/api/export/${kind}`, { a, b, similarity });
  const saves = about.exports.map(([kind, label]) => node("a", { href: query(kind), download: `bilrp.${kind}` }, label));
  const links = node(
    "p",
    { class: "trail" },
    node("a", { href: address.item(a, { by }) }, one),
    " and ",
    node("a", { href: address.item(b, { by }) }, other),
    node("a", { class: "turn", href: address.pair(b, a, { by }) }, "other way round"),
    node("span", { class: "saves" }, "Save: ", ...saves.flatMap((link, k) => (k ? [" · ", link] : [link]))),
  );
  const stage = node("div", { class: "mounted" });
  root.replaceChildren(node("h1", { class: "unseen" }, `${one} and ${other}`), links, stage);
  const { theme, palette } = document.body.dataset;
  const handle = mount(stage, { ...payload, palette });
  await handle.ready;
  Object.assign(stage.shadowRoot.querySelector(".page").dataset, { theme, palette });
  signal.addEventListener("abort", () => handle.destroy());
  root.append(coverUp({ a, b, payload, similarity, signal, names: [one, other] }));
}

/** The occlusion test: cover regions of A and compare the model's new score with the one that the explanation predicts. */
function coverUp({ a, b, payload, similarity, signal, names }) {
  const place = node("div", { class: "place" });
  const table = node("table", { class: "scores" });
  const note = node("p", { class: "note", role: "status" });
  const clear = node("button", { type: "button" }, "Uncover");
  const lead = `Paint over a part of ${names[0]} and the model is run again: does its score fall as the explanation says?`;
  const details = node(
    "details",
    { class: "cover" },
    node("summary", {}, "Cover-up: put it to the test"),
    node("p", { class: "lead" }, lead),
    node("div", { class: "split" }, place, node("div", {}, table, note, clear)),
  );
  let turn = new AbortController();
  const run = async (regions) => {
    turn.abort();
    turn = new AbortController();
    table.replaceChildren();
    if (!regions.length) return (note.textContent = "Brush over the picture, or press Enter on a part.");
    note.textContent = "Running the model …";
    const life = AbortSignal.any([signal, turn.signal]);
    try {
      show(table, note, await ask("/api/cover", { a, b, regions, similarity }, { signal: life }));
    } catch (error) {
      if (!life.aborted) note.textContent = error.message;
    }
  };
  let board = null;
  details.addEventListener("toggle", () => {
    if (board || !details.open) return;
    const { numbers } = payload.a; // special tokens are not drawn, but the server counts them
    const changed = ({ part }, done) => done && run(part.map((i) => numbers?.[i] ?? i));
    board = createBoard(place, payload.a, { src: payload.a.view?.src, label: `Parts of ${names[0]} to cover`, changed, only: "part" });
    place.classList.add("covering");
    run([]);
  });
  clear.addEventListener("click", () => (board.set({ part: [], without: [] }), run([])));
  return details;
}

function show(table, note, { before, predicted, true: measured, similarity }) {
  const rows = [
    ["before", before],
    ["predicted by the explanation", predicted],
    ["by the model, covered", measured],
  ];
  const most = Math.max(...rows.map(([, value]) => Math.abs(value))) || 1;
  const bar = (value) => {
    const el = node("span", { class: value < 0 ? "bar against" : "bar" });
    el.style.width = `${(100 * Math.abs(value)) / most}%`;
    return el;
  };
  table.replaceChildren(
    node("caption", {}, `${similarity === "dot" ? "Dot product" : "Cosine"} with B`),
    node(
      "tbody",
      {},
      ...rows.map(([name, value], k) =>
        node(
          "tr",
          { class: ["before", "predicted", "true"][k] },
          node("th", { scope: "row" }, name),
          node("td", { class: "number" }, formatScore(value)),
          node("td", { class: "bars" }, bar(value)),
        ),
      ),
    ),
  );
  const way = (fall, [stay, up, down]) => {
    const by = formatScore(Math.abs(fall));
    return by === formatScore(0) ? stay : `${fall < 0 ? up : down} by ${by}`;
  };
  note.textContent = `The explanation said it would ${way(before - predicted, ["stay", "rise", "fall"])}; it ${way(before - measured, ["stayed", "rose", "fell"])}.`;
}

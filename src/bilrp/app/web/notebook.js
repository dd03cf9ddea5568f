// @ts-check
// Notebook widgets: an explanation, or a collection to browse; the selection is a traitlet that Python reads.

import { node } from "../page/dom.js";
import { mount } from "../page/mount.js";
import { THEME } from "../page/theme.js";
import { counted, formatScore } from "../page/words.js";
import { createBoard } from "./board.js";
import { heat } from "./heat.js";

const PAGE = 60;
const NEAR = 12;

/** Show one explanation; the traitlet `selected` is the pinned selection {side, regions, partner, finding}, or {}. */
export function explanation({ model, el }) {
  const place = node("div");
  el.append(place);
  const handle = mount(place, model.get("payload"));
  place.addEventListener("bilrp-chosen", ({ detail }) => {
    model.set("selected", detail ?? {});
    model.save_changes();
  });
  return () => handle.destroy();
}

/** Return { ask, close }: requests to Python by messages, matched with their replies by number. */
function transport(model) {
  const waiting = new Map();
  let number = 0;
  const hear = (reply) => {
    const { done, fail } = waiting.get(reply.number) ?? {};
    waiting.delete(reply.number);
    if ("error" in reply) fail?.(new Error(reply.error));
    else done?.(reply.answer);
  };
  model.on("msg:custom", hear);
  const ask = (what, question = {}) =>
    new Promise((done, fail) => {
      waiting.set(++number, { done, fail });
      model.send({ number, what, question });
    });
  return { ask, close: () => model.off("msg:custom", hear) };
}

/** Show a collection: all items, or one of them with its neighbours, ranked by the selected regions. */
export function collection({ model, el }) {
  const { ask, close } = transport(model);
  const host = node("div");
  el.append(host);
  const shadow = host.attachShadow({ mode: "open" });
  const sheet = new CSSStyleSheet();
  sheet.replaceSync(THEME + model.get("styles"));
  shadow.adoptedStyleSheets = [sheet];
  const main = node("div", { class: "page notebook", "data-theme": "auto", "data-palette": "paper" });
  shadow.append(main);
  const status = (words) => node("p", { class: "note", role: "status" }, words);
  const choose = (selected) => {
    model.set("selected", selected);
    model.save_changes();
  };
  const thumb = async (id, into) => into.append(node("img", { src: await ask("thumbnail", { id }), alt: "" }));
  const failed = (error) => main.replaceChildren(status(error.message));

  const tile = ({ id, name, score }, text, open) => {
    const shown = node("div", { class: "shown" });
    if (text) shown.append(node("p", { class: "line" }, name));
    else thumb(id, shown);
    const about = [score == null ? null : node("b", {}, formatScore(score)), text ? null : node("span", { class: "name" }, name)];
    const button = node("button", { type: "button", class: "open", "aria-label": name }, shown);
    button.addEventListener("click", () => open(id).catch(failed));
    return { shown, el: node("li", { "data-id": id }, button, node("div", { class: "about" }, ...about)) };
  };

  const items = async (offset = 0) => {
    const { total, items: few, text } = await ask("items", { offset, limit: PAGE });
    const step = (to, words, off) => {
      const button = node("button", { type: "button" }, words);
      button.disabled = off;
      button.addEventListener("click", () => items(to).catch(failed));
      return button;
    };
    const steps = node(
      "p",
      { class: "actions" },
      step(offset - PAGE, "Before", offset === 0),
      step(offset + PAGE, "Next", offset + PAGE >= total),
    );
    const list = node("ul", { class: `near ${text ? "text" : "image"}` }, ...few.map((one) => tile(one, text, item).el));
    main.replaceChildren(node("p", { class: "lead" }, counted(total, "item")), list, total > PAGE ? steps : "");
    choose({});
  };

  const item = async (id) => {
    const back = node("button", { type: "button" }, "All items");
    back.addEventListener("click", () => items().catch(failed));
    const [place, list, note] = [node("div", { class: "place" }), node("ol", { class: "near" }), status("Taking it apart …")];
    const head = node("p", { class: "actions" }, back);
    main.replaceChildren(head, node("div", { class: "split" }, node("div", {}, place, note), list));
    const { side, src } = await ask("side", { id });
    let turn = 0;
    const rank = async (state, done) => {
      const mine = ++turn;
      const asked = { id, part: state.part, without: state.without };
      if (done) choose(asked);
      const { neighbours } = await ask("neighbours", { ...asked, k: NEAR });
      if (mine !== turn) return;
      const text = !side.places;
      list.className = `near ${text ? "text" : "image"}`;
      const cards = neighbours.map((near) => tile(near, text, item));
      list.replaceChildren(...cards.map((card) => card.el));
      note.textContent = state.part.length
        ? `Ranked by ${state.part.length} of its parts`
        : state.without.length
          ? `Ranked without ${state.without.length} of its parts`
          : "Ranked by the whole: brush a part, with Shift to leave it out";
      if (!done) return;
      for (const [k, near] of neighbours.entries()) {
        const answer = await ask("heat", { id: near.id, against: [asked] });
        if (mine !== turn) return;
        cards[k].shown.replaceChildren(heat(answer.side, answer.values, answer.src, near.name));
      }
      list.dataset.done = "yes";
    };
    const board = createBoard(place, side, {
      src,
      label: `Parts of ${side.name}`,
      changed: (state, done) => rank(state, done).catch(failed),
    });
    board.set({ part: [], without: [] });
    await rank({ part: [], without: [] }, true);
  };
  items().catch(failed);
  return close;
}

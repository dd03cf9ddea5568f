// @ts-check
// Contrast: which regions of an item raise its similarity to one of two neighbours or groups more than to the other.

import { node } from "../page/dom.js";
import { formatScore } from "../page/words.js";
import * as address from "./address.js";
import { ask, fetched, progress } from "./api.js";
import { heat } from "./heat.js";

const sideOf = (said) => (said?.startsWith("item:") ? { id: said.slice(5) } : said?.startsWith("group:") ? { group: said.slice(6) } : null);

function chooser(about, said) {
  const options = () =>
    about.groups.map(({ name, count }) => node("option", { value: `group:${name}` }, `${name || "no group"} (${count})`));
  const choose = (name, label) => {
    const el = node("select", { name, "aria-label": label }, node("option", { value: "" }, "choose a group"), ...options());
    if (sideOf(said[name])?.group !== undefined) el.value = said[name];
    return el;
  };
  const [first, second] = [choose("first", "This group"), choose("second", "And not that group")];
  const form = node("form", { class: "tools" }, "this ", first, " and not that ", second);
  form.addEventListener("change", () => {
    if (first.value && second.value && first.value !== second.value)
      address.go(address.to("/contrast", { item: said.item, first: first.value, second: second.value }));
  });
  return form;
}

/** The items to explain: the one in the URL, else typical items of both groups. */
async function examples(said, sides, signal) {
  if (said.item) return [{ id: said.item }];
  const groups = sides.filter((side) => side.group !== undefined);
  const answer = await Promise.all(groups.map(({ group }) => fetched(address.to("/api/groups", { name: group }), signal)));
  return answer.flatMap(({ typical }) => typical.slice(0, 3));
}

export async function contrast(root, { about, said, signal }) {
  const sides = [sideOf(said.first), sideOf(said.second)];
  const head = node("h1", {}, "Why this and not that?");
  const tools = about.groups.length > 1 ? chooser(about, said) : "";
  if (!sides[0] || !sides[1]) {
    const lead = "Choose two groups, or open an item and press “versus” on two of its neighbours.";
    root.replaceChildren(head, node("p", { class: "lead" }, lead), tools);
    return;
  }
  const note = node("p", { class: "note", role: "status" }, "…");
  const list = node("ul", { class: "shows" });
  root.replaceChildren(head, tools, note, list);
  const shown = await examples(said, sides, signal);
  for (const { id } of shown) {
    const onProgress = (event) => (note.textContent = progress(event));
    const answer = await ask("/api/contrast", { id, first: sides[0], second: sides[1] }, { signal, onProgress });
    const [first, second] = answer.sides;
    const src = address.content(id, "picture");
    const words = `Red speaks for ${first.name}, blue for ${second.name}`;
    const picture = node(
      "a",
      { href: address.item(id), "aria-label": `${answer.side.name}: open` },
      heat(answer.side, answer.values, src, words),
    );
    const says = [
      node("b", {}, answer.side.name),
      node("span", { class: "for" }, `${first.name} ${formatScore(first.score)}`),
      node("span", { class: "against" }, `${second.name} ${formatScore(second.score)}`),
    ];
    list.append(node("li", { "data-score": answer.score }, picture, node("p", { class: "about" }, ...says)));
    const names = sides.map((side, k) =>
      side.group === undefined
        ? node("a", { href: address.item(side.id) }, answer.sides[k].name)
        : node("a", { href: address.group(side.group) }, side.group),
    );
    note.replaceChildren(
      node("span", { class: "key for" }, "speaks for"),
      " ",
      names[0],
      " · ",
      node("span", { class: "key against" }, "speaks for"),
      " ",
      names[1],
    );
  }
  list.classList.toggle("single", shown.length === 1);
  if (said.item) {
    const ids = sides.filter((side) => side.id).map(({ id }) => id);
    list.append(
      ...ids.map((id, k) =>
        node(
          "li",
          { class: "rival" },
          node(
            "a",
            { href: address.pair(said.item, id), "aria-label": k ? "The pair with that one" : "The pair with this one" },
            about.kind === "image" ? node("img", { src: address.content(id, "thumbnail"), alt: "" }) : "the pair",
          ),
          node("p", { class: "about" }, k ? "… and not that" : "why this …"),
        ),
      ),
    );
  }
  list.dataset.done = "yes";
}

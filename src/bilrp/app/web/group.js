// @ts-check
// A group: its typical and untypical items, near items of other groups, and what each shares with the group's mean.

import { node } from "../page/dom.js";
import { counted, formatScore } from "../page/words.js";
import * as address from "./address.js";
import { ask, fetched } from "./api.js";
import { heat } from "./heat.js";

function row(title, items, kind) {
  if (!items.length) return { el: "", places: [] };
  const places = [];
  const cards = items.map((one) => {
    const place = node(
      "div",
      { class: "shown" },
      kind === "image" ? node("img", { src: address.content(one.id, "thumbnail"), alt: "" }) : node("p", { class: "line" }, one.name),
    );
    places.push(place);
    const link = node("a", { class: "open", href: address.item(one.id), "aria-label": one.name }, place);
    return node(
      "li",
      {},
      link,
      node(
        "div",
        { class: "about" },
        node("b", {}, formatScore(one.score)),
        node("span", { class: "name" }, kind === "image" ? one.name : ""),
      ),
    );
  });
  return { el: node("section", {}, node("h2", {}, title), node("ol", { class: `near ${kind}` }, ...cards)), places };
}

export async function group(root, { about, said, signal }) {
  const name = said.name ?? "";
  const details = await fetched(address.to("/api/groups", { name }), signal);
  const near = details.outside == null ? "" : `, those of all others ${formatScore(details.outside)}`;
  const lead = `${counted(details.count, "item")}. Their mean cosine with the group's mean is ${formatScore(details.inside)}${near}. Coloured: what each shares with the group.`;
  const rows = [
    row("Most typical", details.typical, about.kind),
    row("Least typical", details.untypical, about.kind),
    row("Nearest from outside", details.near, about.kind),
  ];
  const links = node(
    "p",
    { class: "trail" },
    node("a", { href: address.to("/", { group: name }) }, "all its items"),
    " · ",
    node("a", { href: address.to("/contrast", { first: `group:${name}` }) }, "set it against another group"),
  );
  root.replaceChildren(
    node("h1", {}, name || "no group"),
    node("p", { class: "lead" }, lead),
    links,
    ...rows.map(({ el }) => el).filter(Boolean),
  );
  const all = rows.flatMap(({ places }, k) => places.map((place, i) => [place, [details.typical, details.untypical, details.near][k][i]]));
  for (const [place, { id, name: called }] of all) {
    const answer = await ask("/api/heat", { id, against: [{ group: name }] }, { signal });
    place.replaceChildren(heat(answer.side, answer.values, address.content(id, "thumbnail"), `What ${called} shares with the group`));
  }
  root.dataset.done = "yes";
}

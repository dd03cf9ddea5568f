// @ts-check
// The repair of one suspect: what it was measured to change, and an item's neighbours and heat maps before and after.

import { node } from "../page/dom.js";
import { formatScore, roundPercent } from "../page/words.js";
import * as address from "./address.js";
import { ask, progress } from "./api.js";
import { heat } from "./heat.js";

const SHOWN = 8;
const AGAINST = 6; // number of neighbours whose mean the heat map of the item refers to

/** The measured figures, before and after. */
function figures({ before, after, clean_attraction: clean, carriers, carriers_before: had, carriers_after: have, planted }) {
  const rows = [
    [`Neighbours of the ${carriers} items with it that have it too`, had, have],
    [
      `The same of ${planted} others that it was added to`,
      before.attraction,
      after.attraction,
      ` (${roundPercent(clean)} if no item had it)`,
    ],
    ["Right neighbours of these", before.restored, after.restored],
    ["Right neighbours of items without it", before.others, after.others],
    ["Relevance on it", before.relevance, after.relevance],
  ].filter(([, first, last]) => first != null && last != null);
  const lines = rows.map(([name, first, last, note = ""]) =>
    node("tr", {}, node("th", { scope: "row" }, name), node("td", {}, roundPercent(first)), node("td", {}, roundPercent(last), note)),
  );
  const head = ["", "as it is", "repaired"].map((words) => node("th", { scope: "col" }, words));
  const caption = node("caption", {}, "Right: the neighbours of an item if no item had it.");
  return node("table", { class: "figures" }, caption, node("thead", {}, node("tr", {}, ...head)), node("tbody", {}, ...lines));
}

/** One column: the item with its heat map, and its neighbours. */
function column(title, id, kind) {
  const place = node("div", { class: "place" });
  if (kind === "image") place.append(node("img", { src: address.content(id, "picture"), alt: "" }));
  const note = node("p", { class: "note" });
  const list = node("ol", { class: `near ${kind}` });
  const el = node("section", { "aria-label": title }, node("h2", {}, title), place, note, list);
  return { el, place, note, list };
}

function card(near, kind) {
  const place = node("div", { class: "shown" });
  if (kind === "image") place.append(node("img", { src: address.content(near.id, "thumbnail"), alt: "" }));
  else place.append(node("p", { class: "line" }, near.name));
  const has = near.has ? node("span", { class: "against" }, "has it") : null;
  const words = `${near.name}, score ${formatScore(near.score)}${near.has ? ", has it" : ""}`;
  const open = node("a", { class: "open", href: address.item(near.id), "aria-label": `${words}: open` }, place);
  const about = node("div", { class: "about" }, node("b", {}, formatScore(near.score)), has);
  return { el: node("li", { "data-id": near.id, "data-has": near.has ? "yes" : "no" }, open, about), place };
}

/** Compare one item before and after; heat maps follow one after the other. */
async function compare(root, { suspect, id, kind, signal, label }) {
  const sides = { before: column("As it is", id, kind), after: column(`Repaired: ${label}`, id, kind) };
  root.replaceChildren(sides.before.el, sides.after.el);
  delete root.dataset.done;
  const near = await ask("/api/repair/neighbours", { suspect, id, k: SHOWN }, { signal });
  const cards = {};
  for (const [name, side] of Object.entries(sides)) {
    cards[name] = near[name].map((one) => card(one, kind));
    side.list.replaceChildren(...cards[name].map(({ el }) => el));
    const count = near[name].filter(({ has }) => has).length;
    side.note.textContent = `${count} of ${near[name].length} neighbours have it.`;
  }
  const draw = async (place, question, src, words) => {
    const answer = await ask("/api/repair/heat", { suspect, ...question }, { signal });
    place.replaceChildren(heat(answer.side, answer.values, src, words));
  };
  for (const [name, side] of Object.entries(sides)) {
    const against = near[name].slice(0, AGAINST).map((one) => one.id);
    const repaired = name === "after";
    await draw(side.place, { id, against, repaired }, address.content(id, "picture"), "What it has in common with its first neighbours");
  }
  for (let k = 0; k < SHOWN; k++)
    for (const name of Object.keys(sides)) {
      const one = near[name][k];
      if (!one) continue;
      const question = { id: one.id, against: [id], repaired: name === "after" };
      await draw(cards[name][k].place, question, address.content(one.id, "thumbnail"), `Where ${one.name} has it`);
    }
  root.dataset.done = "yes";
}

export async function repair(root, { about, said, signal, say }) {
  const suspect = Number(said.suspect) || 1;
  const wait = node("p", { class: "wait", role: "status" }, "Measuring the repair …");
  root.replaceChildren(node("h1", {}, "Repair"), wait);
  const answer = await ask("/api/repair", { suspect }, { signal, onProgress: (event) => (wait.textContent = progress(event)) });
  const back = node("p", {}, node("a", { href: "/audit" }, "Back to the audit"));
  const heading = node("h1", {}, "Repair");
  const lead = node("p", { class: "lead" }, `${answer.where[0].toUpperCase()}${answer.where.slice(1)}.`);
  const measured = answer.report ? figures(answer.report) : "";
  if (!answer.proposed) {
    const refusal = node("p", { role: "alert" }, `No repair is proposed: ${answer.refusal}.`);
    root.replaceChildren(heading, lead, refusal, measured, back);
    return;
  }
  const missed = answer.report.missed.map((words) => node("p", {}, `It misses a goal: ${words}.`));
  const onoff = node("input", { type: "checkbox", id: "repaired" });
  onoff.checked = said.off !== "1";
  const first = said.item ?? answer.examples[0].id;
  const both = node("div", { class: "beside" });
  const show = () => both.classList.toggle("off", !onoff.checked);
  const picks = node("ul", { class: "picks" });
  const open = async (id) => {
    for (const el of picks.children) el.querySelector("button").setAttribute("aria-pressed", `${el.dataset.id === id}`);
    const here = { suspect, item: id, off: onoff.checked ? "" : "1" };
    address.rewrite(address.to("/repair", here), false);
    try {
      await compare(both, { suspect, id, kind: about.kind, signal, label: answer.label });
    } catch (error) {
      if (!signal.aborted) say(error.message);
    }
  };
  for (const one of answer.examples) {
    const shown = about.kind === "image" ? node("img", { src: address.content(one.id, "thumbnail"), alt: "" }) : one.name;
    const button = node("button", { type: "button", "aria-label": `Compare ${one.name}`, "aria-pressed": "false" }, shown);
    button.addEventListener("click", () => open(one.id));
    picks.append(node("li", { "data-id": one.id }, button));
  }
  onoff.addEventListener("change", () => {
    show();
    const here = { ...address.here().said, off: onoff.checked ? "" : "1" };
    address.rewrite(address.to("/repair", here), false);
  });
  show();
  root.replaceChildren(
    heading,
    lead,
    measured,
    ...missed,
    node("h2", {}, "Items that have it"),
    picks,
    node("p", {}, node("label", { for: "repaired", class: "onoff" }, onoff, " Show the repaired similarity as well")),
    both,
    back,
  );
  await open(first);
}

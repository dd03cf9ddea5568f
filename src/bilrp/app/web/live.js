// @ts-check
// One pair without a collection: settings with the estimated time, and the interactive explanation.

import { node } from "../page/dom.js";
import { mount } from "../page/mount.js";
import * as address from "./address.js";
import { ask, progress } from "./api.js";

const SIDE_BY_SIDE = 3;

const select = (name, label, options, value) => {
  const el = node("select", { name }, ...options.map((one) => node("option", { value: one }, String(one).replaceAll("_", " "))));
  el.value = value;
  return node("label", {}, label, el);
};

const formatCost = ({ gflop, seconds }) => {
  if (!gflop) return "At hand already.";
  const time =
    seconds < 1 ? "less than a second" : seconds < 90 ? `about ${Math.round(seconds)} s` : `about ${Math.round(seconds / 60)} min`;
  return `${gflop < 10 ? gflop.toFixed(1) : Math.round(gflop)} GFLOP: ${time}.`;
};

export async function live(root, { about, said, signal }) {
  const { layers, rules, similarity, regions, region } = about.choices;
  const chosen = new Set(
    (said.layers ?? "")
      .split(".")
      .map(Number)
      .filter((n) => layers.includes(n)),
  );
  const boxes = layers.map((n) => {
    const box = node("input", { type: "checkbox", name: "layer", value: n });
    box.checked = chosen.has(n);
    return node("label", { class: "tick" }, box, n);
  });
  const one = (options, value, otherwise) => (options.includes(value) ? value : otherwise);
  const form = node(
    "form",
    { class: "settings", "aria-label": "Settings" },
    layers.length ? node("fieldset", {}, node("legend", {}, "layers, side by side"), ...boxes) : null,
    select("rules", "rules", rules, one(rules, said.rules, rules[0])),
    select("similarity", "similarity", similarity, one(similarity, said.similarity, similarity[0])),
    select("regions", "regions", regions, one(regions, said.regions, region)),
    node("button", {}, "See it"),
  );
  const note = node("p", { class: "note", role: "status" });
  const stage = node("div", { class: "layers" });
  root.replaceChildren(node("h1", {}, about.name), form, note, stage);
  const readSettings = () => ({
    layers: boxes
      .map((label) => label.firstElementChild)
      .filter((box) => box.checked)
      .map((box) => Number(box.value))
      .slice(0, SIDE_BY_SIDE),
    ...Object.fromEntries(["rules", "similarity", "regions"].map((name) => [name, form.elements[name].value])),
  });
  let turn = new AbortController();
  let handles = [];
  const fresh = () => {
    turn.abort();
    turn = new AbortController();
    return AbortSignal.any([signal, turn.signal]);
  };
  const guard = (life) => (error) => life.aborted || (note.textContent = error.message);
  const plan = async () => {
    const life = fresh();
    await ask("/api/plan", readSettings(), { signal: life }).then((answer) => (note.textContent = formatCost(answer)), guard(life));
  };
  const show = async () => {
    const life = fresh();
    delete stage.dataset.done;
    await ask("/api/live", readSettings(), { signal: life, onProgress: (event) => (note.textContent = progress(event)) }).then(
      async (payloads) => {
        for (const handle of handles) handle.destroy();
        const places = payloads.map(() => node("div"));
        stage.replaceChildren(...places);
        stage.dataset.columns = payloads.length;
        const { theme, palette } = document.body.dataset;
        handles = payloads.map((payload, k) => mount(places[k], { ...payload, palette, compact: payloads.length > 1 }));
        await Promise.all(handles.map((handle) => handle.ready));
        for (const place of places) Object.assign(place.shadowRoot.querySelector(".page").dataset, { theme, palette });
        note.textContent = "";
        stage.dataset.done = "yes";
      },
      guard(life),
    );
  };
  form.addEventListener("change", plan);
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const { layers: few, ...rest } = readSettings();
    address.rewrite(address.to("/", { layers: few.join("."), ...rest }), true);
    show();
  });
  await show();
}

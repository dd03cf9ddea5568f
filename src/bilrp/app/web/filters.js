// @ts-check
// Conditions on the metadata: a row of controls, and conditions in the URL as JSON.

import { node } from "../page/dom.js";

/**
 * Conditions from the URL; anything else has none.
 * @param {string} [text]
 * @returns {{ column: string, op: string, value: any }[]}
 */
export function conditions(text) {
  try {
    const list = JSON.parse(text ?? "[]");
    return Array.isArray(list) ? list.filter((one) => one && typeof one.column === "string") : [];
  } catch {
    return [];
  }
}

const OPS = { string: ["=", "!=", "contains"], bool: ["="], int64: ["=", ">=", "<="], double: ["=", ">=", "<="] };
const NAMES = { "=": "is", "!=": "is not", contains: "contains", ">=": "at least", "<=": "at most" };

const option = (value, words = value) => node("option", { value }, words);

function valueControl({ type, values }) {
  if (type === "bool") return node("select", { "aria-label": "Value" }, option("true", "yes"), option("false", "no"));
  if (values.length) return node("select", { "aria-label": "Value" }, ...values.map((value) => option(value)));
  const kind = type === "string" ? "text" : "number";
  return node("input", { type: kind, step: "any", "aria-label": "Value", placeholder: "value" });
}

const parsed = (type, value) => (type === "bool" ? value === "true" : type === "string" ? value : Number(value));

/**
 * Controls that add and remove conditions.
 * @param {any} about the collection
 * @param {{ column: string, op: string, value: any }[]} list the conditions that hold now
 * @param {(list: { column: string, op: string, value: any }[]) => void} changed called with the new conditions
 */
export function filterControls(about, list, changed) {
  const columns = about.columns ?? [];
  if (!columns.length) return "";
  const chips = list.map((one, k) => {
    const chip = node(
      "button",
      { type: "button", class: "chip", title: "Remove this filter" },
      `${one.column} ${NAMES[one.op] ?? one.op} ${one.value} ×`,
    );
    chip.addEventListener("click", () => changed(list.filter((_, other) => other !== k)));
    return chip;
  });
  const column = node("select", { "aria-label": "Column" }, option("", "filter by …"), ...columns.map(({ name }) => option(name)));
  const rest = node("span", { class: "condition" });
  column.addEventListener("change", () => {
    const chosen = columns.find(({ name }) => name === column.value);
    if (!chosen) return rest.replaceChildren();
    const op = node("select", { "aria-label": "Comparison" }, ...OPS[chosen.type].map((each) => option(each, NAMES[each])));
    let value = valueControl(chosen);
    op.addEventListener("change", () => {
      const next = valueControl(op.value === "contains" ? { type: "string", values: [] } : chosen);
      value.replaceWith(next);
      value = next;
    });
    const add = node("button", { type: "button" }, "Filter");
    add.addEventListener("click", () => {
      if (value.value !== "") changed([...list, { column: chosen.name, op: op.value, value: parsed(chosen.type, value.value) }]);
    });
    return rest.replaceChildren(op, value, add);
  });
  return node("div", { class: "filters", role: "group", "aria-label": "Filters" }, column, rest, ...chips);
}

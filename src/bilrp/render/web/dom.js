// One way to make an element.

export const SVG = "http://www.w3.org/2000/svg";

export function node(name, attributes = {}, ...children) {
  const el = name.startsWith("svg:") ? document.createElementNS(SVG, name.slice(4)) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) if (value != null) el.setAttribute(key, value);
  el.append(...children);
  return el;
}

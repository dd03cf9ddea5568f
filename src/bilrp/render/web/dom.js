// @ts-check
// Create elements and set their attributes.

export const SVG = "http://www.w3.org/2000/svg";

/**
 * Create an element (`svg:` before the name: of SVG) with attributes and children; null and "" are left out.
 * @param {string} name
 * @param {Record<string, any>} [attributes]
 * @param {any[]} children elements and texts
 * @returns {any}
 */
export function node(name, attributes = {}, ...children) {
  const el = name.startsWith("svg:") ? document.createElementNS(SVG, name.slice(4)) : document.createElement(name);
  set(el, attributes);
  el.append(...children.filter((child) => child != null && child !== ""));
  return el;
}

/** Set attributes that changed; null removes one. */
export function set(el, attributes) {
  for (const [key, value] of Object.entries(attributes)) {
    if (value == null) el.removeAttribute(key);
    else if (el.getAttribute(key) !== String(value)) el.setAttribute(key, value);
  }
  return el;
}

/** Make `parent` hold exactly n elements of one kind, and return them. */
export function pool(parent, n, kind) {
  while (parent.childElementCount > n) parent.lastElementChild.remove();
  while (parent.childElementCount < n) parent.append(node(kind));
  return [...parent.children];
}

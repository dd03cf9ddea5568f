// @ts-check
// URLs of the views, and the browser's history: each view has a URL that can be shared.

/**
 * Write numbers as a short string: [1, 2, 3, 7] is "1-3.7".
 * @param {number[]} numbers
 */
export function packed(numbers) {
  const runs = [];
  for (const i of [...new Set(numbers)].sort((x, y) => x - y))
    if (runs.at(-1)?.[1] === i - 1) runs.at(-1)[1] = i;
    else runs.push([i, i]);
  return runs.map(([from, to]) => (from === to ? `${from}` : `${from}-${to}`)).join(".");
}

/**
 * Read the numbers of `packed`; a string of another form has none.
 * @param {string} [text]
 */
export function unpacked(text) {
  if (!/^\d+(-\d+)?(\.\d+(-\d+)?)*$/.test(text ?? "")) return [];
  return text.split(".").flatMap((run) => {
    const [from, to = from] = run.split("-").map(Number);
    return Array.from({ length: Math.min(to - from + 1, 4096) }, (_, k) => from + k);
  });
}

/**
 * A URL of the app from its path and parameters; empty parameters are left out.
 * @param {string} path
 * @param {Record<string, any>} [said]
 */
export function to(path, said = {}) {
  const kept = Object.entries(said).filter(([, value]) => value != null && value !== "");
  const query = new URLSearchParams(kept).toString();
  return path + (query ? `?${query}` : "");
}

export const item = (id, said) => to(`/item/${encodeURIComponent(id)}`, said);
export const pair = (a, b, said) => to(`/pair/${encodeURIComponent(a)}/${encodeURIComponent(b)}`, said);
/** The URL of an item's "picture", "thumbnail" or "text"; ids of records may have any characters. */
export const content = (id, kind) => `/api/items/${encodeURIComponent(id)}/${kind}`;
export const group = (name) => to("/group", { name });

/** The current URL as { view, rest: other parts of the path, said: parameters }. */
export function here() {
  const [view = "", ...rest] = location.pathname.split("/").slice(1).map(decodeURIComponent);
  return { view: view || "collection", rest, said: Object.fromEntries(new URLSearchParams(location.search)) };
}

/**
 * Change the URL without showing another view.
 * @param {string} address
 * @param {boolean} push whether to add an entry to the history
 */
export function rewrite(address, push) {
  const now = location.pathname + location.search;
  if (address !== now) history[push ? "pushState" : "replaceState"](null, "", address);
}

/**
 * Show the view of a URL.
 * @param {string} address
 */
export function go(address) {
  history.pushState(null, "", address);
  dispatchEvent(new PopStateEvent("popstate"));
}

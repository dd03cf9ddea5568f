// Where we are: each view has an address that can be shared, and goes back and forward.

/** Numbers in few letters: [1, 2, 3, 7] is "1-3.7". */
export function packed(numbers) {
  const runs = [];
  for (const i of [...new Set(numbers)].sort((x, y) => x - y))
    if (runs.at(-1)?.[1] === i - 1) runs.at(-1)[1] = i;
    else runs.push([i, i]);
  return runs.map(([from, to]) => (from === to ? `${from}` : `${from}-${to}`)).join(".");
}

export function unpacked(text) {
  if (!/^\d+(-\d+)?(\.\d+(-\d+)?)*$/.test(text ?? "")) return [];
  return text.split(".").flatMap((run) => {
    const [from, to = from] = run.split("-").map(Number);
    return Array.from({ length: Math.min(to - from + 1, 4096) }, (_, k) => from + k);
  });
}

/** An address of the app from its path and what else it says; what is empty is left out. */
export function to(path, said = {}) {
  const kept = Object.entries(said).filter(([, value]) => value != null && value !== "");
  const query = new URLSearchParams(kept).toString();
  return path + (query ? `?${query}` : "");
}

export const item = (id, said) => to(`/item/${id}`, said);
export const pair = (a, b, said) => to(`/pair/${a}/${b}`, said);
export const group = (name) => to("/group", { name });

/** What the address says: {view, id, a, b, …}. */
export function here() {
  const [view = "", ...rest] = location.pathname.split("/").slice(1).map(decodeURIComponent);
  return { view: view || "collection", rest, said: Object.fromEntries(new URLSearchParams(location.search)) };
}

/** Change the address without showing another view: `push` makes a step to go back to. */
export function rewrite(address, push) {
  const now = location.pathname + location.search;
  if (address !== now) history[push ? "pushState" : "replaceState"](null, "", address);
}

export function go(address) {
  history.pushState(null, "", address);
  dispatchEvent(new PopStateEvent("popstate"));
}

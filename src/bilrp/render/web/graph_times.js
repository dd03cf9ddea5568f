// @ts-check
// Times of a network's items: their order, and places in columns by time.

/** The age of each node's time, 0 (oldest) to 4; 2 without times. */
export function rankTimes(data) {
  const known = sortTimes(data);
  return data.nodes.map(({ time }) => {
    const rank = known.indexOf(time);
    return rank < 0 || known.length < 2 ? 2 : Math.round((4 * rank) / (known.length - 1));
  });
}

/** The different times of all items, earliest first. */
export function sortTimes(data) {
  const times = [...new Set(data.nodes.map(({ time }) => time))].filter((time) => time !== "");
  const isNumber = times.every((time) => Number.isFinite(Number(time)));
  return times.sort((a, b) => (isNumber ? Number(a) - Number(b) : a < b ? -1 : 1));
}

/** Places by time from left to right, and the column of each item (−1: no time); what is joined stays in neighbouring rows. */
export function arrangeByTime(data) {
  const times = sortTimes(data);
  const neighbours = data.nodes.map(() => []);
  for (const { a, b } of data.edges) {
    neighbours[a].push(b);
    neighbours[b].push(a);
  }
  const places = data.nodes.map(() => null);
  const columns = data.nodes.map(({ time }) => times.indexOf(time));
  let row = 0;
  data.nodes.forEach((_, start) => {
    if (places[start]) return;
    const used = new Map();
    const frontier = [start];
    places[start] = [0, 0];
    while (frontier.length) {
      const n = /** @type {number} */ (frontier.pop());
      const column = columns[n];
      const inner = used.get(column) ?? 0;
      used.set(column, inner + 1);
      places[n] = [column * 40, row + inner];
      for (const next of neighbours[n]) {
        if (places[next]) continue;
        places[next] = [0, 0];
        frontier.push(next);
      }
    }
    row += Math.max(...used.values()) + 0.6;
  });
  const height = Math.max(row, 1);
  const scale = Math.max(1, (times.length * 40 * 0.7) / height);
  const stretch = Math.max(1, height / (times.length * 55));
  return { places: places.map(([x, y]) => [x * stretch, y * scale]), columns };
}

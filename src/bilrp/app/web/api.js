// Questions to the server: answers at once, or line by line with how far the work is; given up when nobody waits.

const VISITOR = Array.from(crypto.getRandomValues(new Uint8Array(16)), (t) => t.toString(16).padStart(2, "0")).join("");

export class Failed extends Error {
  constructor(status, words) {
    super(words);
    this.status = status;
  }
}

async function checked(reply) {
  if (reply.ok) return reply;
  const said = await reply.json().catch(() => ({}));
  throw new Failed(reply.status, said.error ?? `the server answered ${reply.status}`);
}

export const fetched = async (path, signal) => (await checked(await fetch(path, { signal }))).json();

/** Pages that are asked for once each, by their number; one that failed is asked for again. */
export function createPages(url, signal) {
  const pages = new Map();
  return (page) => {
    if (!pages.has(page)) {
      const asked = fetched(url(page), signal);
      pages.set(page, asked);
      asked.catch(() => pages.delete(page));
    }
    return pages.get(page);
  };
}

const pause = (seconds, signal) =>
  new Promise((done, fail) => {
    const timer = setTimeout(done, 1000 * seconds);
    signal?.addEventListener("abort", () => (clearTimeout(timer), fail(signal.reason)), { once: true });
  });

/** Read lines of JSON until the one that has the answer. */
async function lastOf(reply, told) {
  const reader = reply.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    const lines = (rest + (value ?? "")).split("\n");
    rest = lines.pop();
    for (const line of lines.filter(Boolean)) {
      const news = JSON.parse(line);
      if ("answer" in news) return news.answer;
      if ("error" in news) throw new Failed(news.status, news.error);
      told?.(news);
    }
    if (done) throw new Failed(0, "the server went away");
  }
}

/** Ask a question; `told` hears {waiting}, {what, done, total}. Where the server is busy, it is asked again. */
export async function ask(path, question, { signal, told } = {}) {
  for (;;) {
    const reply = await fetch(path, {
      method: "POST",
      headers: { "content-type": "application/json", "x-bilrp-visitor": VISITOR },
      body: JSON.stringify(question),
      signal,
    });
    if (reply.status !== 503) return lastOf(await checked(reply), told);
    told?.({ busy: true });
    await pause(Number(reply.headers.get("retry-after") ?? 2), signal);
  }
}

/** Bring a file or a text; what comes back is known by its id until the server forgets it. */
export async function bring(content, name) {
  const kind = typeof content === "string" ? "text/plain" : content.type || "application/octet-stream";
  const at = `/api/query?name=${encodeURIComponent(name)}`;
  return (await checked(await fetch(at, { method: "POST", headers: { "content-type": kind }, body: content }))).json();
}

/** How far it is, in words. */
export function progress({ waiting, busy, what, done, total }) {
  if (busy) return "The server is busy; asking again …";
  if (waiting) return `${waiting} before you …`;
  return total ? `${what[0].toUpperCase()}${what.slice(1)}: ${Math.round((100 * done) / total)} %` : `${what} …`;
}

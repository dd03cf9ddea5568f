// @ts-check
// Requests to the server. Slow ones stream their progress, one JSON object per line, and are aborted by their signal.

// identifies this tab, so that the server can share its time between visitors
const VISITOR = Array.from(crypto.getRandomValues(new Uint8Array(16)), (t) => t.toString(16).padStart(2, "0")).join("");

/** A request that the server refused, with the HTTP status (0: the connection was lost). */
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

/**
 * Return a function that fetches a page by its number, once each; a page that failed is fetched again.
 * @param {(page: number) => string} url
 * @param {AbortSignal} [signal]
 */
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

/** Read lines of JSON until the one that contains the answer. */
async function lastOf(reply, onProgress) {
  const reader = reply.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    const lines = (rest + (value ?? "")).split("\n");
    rest = lines.pop();
    for (const line of lines.filter(Boolean)) {
      const event = JSON.parse(line);
      if ("answer" in event) return event.answer;
      if ("error" in event) throw new Failed(event.status, event.error);
      onProgress?.(event);
    }
    if (done) throw new Failed(0, "the server went away");
  }
}

/**
 * Send a request and return its answer; repeated while the server is busy (HTTP 503).
 * @param {string} path
 * @param {object} question the body, sent as JSON
 * @param {{ signal?: AbortSignal, onProgress?: (progress: any) => void }} [options]
 *   onProgress: called with {busy}, {waiting} or {what, done, total}
 * @returns {Promise<any>}
 */
export async function ask(path, question, { signal, onProgress } = {}) {
  for (;;) {
    const reply = await fetch(path, {
      method: "POST",
      headers: { "content-type": "application/json", "x-bilrp-visitor": VISITOR },
      body: JSON.stringify(question),
      signal,
    });
    if (reply.status !== 503) return lastOf(await checked(reply), onProgress);
    onProgress?.({ busy: true });
    await pause(Number(reply.headers.get("retry-after") ?? 2), signal);
  }
}

/**
 * Upload a file or a text as a query; its id is valid until the server drops it from its cache.
 * @param {File | string} content
 * @param {string} name
 */
export async function bring(content, name) {
  const kind = typeof content === "string" ? "text/plain" : content.type || "application/octet-stream";
  const at = `/api/query?name=${encodeURIComponent(name)}`;
  return (await checked(await fetch(at, { method: "POST", headers: { "content-type": kind }, body: content }))).json();
}

/**
 * Progress of a request as a sentence.
 * @param {any} event an object that `onProgress` of `ask` receives
 */
export function progress({ waiting, busy, what, done, total }) {
  if (busy) return "The server is busy; asking again …";
  if (waiting) return `${waiting} before you …`;
  return total ? `${what[0].toUpperCase()}${what.slice(1)}: ${Math.round((100 * done) / total)} %` : `${what} …`;
}

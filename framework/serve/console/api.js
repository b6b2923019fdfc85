// JSON requests to the server.

export class Problem extends Error {
  constructor(status, body) {
    super([body.detail ?? body.title ?? `HTTP ${status}`, body.fix].filter(Boolean).join(" "));
    this.status = status;
    this.code = body.code;
    this.problems = body.problems ?? [];
  }
}

// A proxy may mount the server below a path, so URLs are relative to this file.
const ROOT = new URL("..", import.meta.url).pathname.replace(/\/$/, "");
export const urlOf = (path) => ROOT + path;

export async function call(method, path, body) {
  const headers = body === undefined ? {} : { "content-type": "application/json" };
  const answer = await fetch(urlOf(path), { method, headers, body: body === undefined ? undefined : JSON.stringify(body) });
  const text = await answer.text();
  let found = {};
  try { found = text ? JSON.parse(text) : {}; } catch { found = { detail: text.slice(0, 300) }; }
  if (!answer.ok) throw new Problem(answer.status, found);
  return found;
}

export const get = (path) => call("GET", path);
export const post = (path, body = {}) => call("POST", path, body);
export const threadPath = (id) => `/api/threads/${encodeURIComponent(id)}`;

export function query(path, values) {
  const given = Object.entries(values).filter(([, value]) => value !== "" && value !== null && value !== undefined);
  return given.length ? `${path}?${new URLSearchParams(given)}` : path;
}

// Wrap a loader that may be called again before it finishes; `stale()` is true for outdated calls.
export function latest(load) {
  let calls = 0;
  return (...given) => {
    const mine = calls += 1;
    return load(() => mine !== calls, ...given);
  };
}

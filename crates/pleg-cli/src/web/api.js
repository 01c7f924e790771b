// Requests to the daemon that serves this page.

/** What the daemon refuses, in its own words. */
export class ApiError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

const PATIENCE = 10_000;

async function answer(path, options) {
  const response = await fetch(path, { cache: 'no-store', ...options });
  if (response.ok) return response;
  let message = `${path}: ${response.status}`;
  try {
    message = (await response.json()).error ?? message;
  } catch {
    // No JSON, no words.
  }
  throw new ApiError(response.status, message);
}

/** GET of a JSON answer. */
export async function getJson(path) {
  const response = await answer(path, { signal: AbortSignal.timeout(PATIENCE) });
  return response.json();
}

/** GET of a text. */
export async function getText(path) {
  const response = await answer(path, { signal: AbortSignal.timeout(PATIENCE) });
  return response.text();
}

/** GET of JSON lines that end; at most `limit` of them are read. */
export async function getLines(path, limit = 50_000) {
  const lines = [];
  const abort = new AbortController();
  const response = await answer(path, { signal: abort.signal });
  for await (const line of readLines(response.body)) {
    lines.push(line);
    if (lines.length >= limit) {
      abort.abort();
      break;
    }
  }
  return lines;
}

/** The objects of a stream of JSON lines. */
export async function* readLines(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = '';
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      const lines = (rest + value).split('\n');
      rest = lines.pop();
      for (const line of lines) if (line) yield JSON.parse(line);
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

/** A stream of JSON lines, until it ends or is aborted. */
export async function openLines(path, signal) {
  const response = await answer(path, { signal });
  return readLines(response.body);
}

/** The pods that a query of the runtime's pods chooses; `summary` leaves out their containers. */
export function podsQuery(pod, summary) {
  const query = new URLSearchParams();
  if (summary) query.set('summary', 'true');
  if (pod) {
    query.set('namespace', pod.namespace);
    // A slash cannot be part of a name in a query; such a pod is found in its namespace.
    if (!pod.name.includes('/') && !pod.namespace.includes('/')) query.set('pod', pod.name);
  }
  const text = query.toString();
  return `/api/v1/runtime/pods${text ? `?${text}` : ''}`;
}

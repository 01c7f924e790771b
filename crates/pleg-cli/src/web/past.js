// What happened before this page was opened: from the history if the daemon keeps one, else from the events that it still holds.

import { getJson, getLines } from './api.js';
import { millis } from './format.js';

const MOST = 50_000; // entries of one answer
const EVENTS = 'ContainerStarted,ContainerDied,ContainerCreated,ContainerRemoved,ContainerChanged,PodSandboxChanged,PodRemoved,'
  + 'PlegHealthy,PlegNotHealthy,PlegDegraded,TroubleStarted,TroubleEnded,Gap,DaemonStarted,DaemonStopped';

let without = null; // why there is no history; null while it is not known, or there is one

/** Why the daemon keeps no history; null if it does. Asking for one that is not there would be an error in the browser's log. */
async function switchedOff() {
  const { history } = await getJson('/api/v1/health');
  if (!history) return 'this daemon keeps none';
  return history.state === 'off' ? history.reason ?? 'its file cannot be opened' : null;
}

/** Why the daemon has no history, in its words; null if it has one. */
export function noHistory() {
  return without;
}

const named = (pod) => pod.name.includes('/') || pod.namespace.includes('/') || pod.name.endsWith('*');

function path(base, fields) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(fields)) if (value !== undefined && value !== null) query.set(name, value);
  return `${base}?${query}`;
}

/** Lines of the history; null if the daemon keeps none. */
async function fromHistory(fields) {
  without = await switchedOff();
  if (without) return null;
  try {
    const lines = await getLines(path('/api/v1/history', { order: 'newest', limit: MOST, ...fields }), MOST);
    return lines.reverse();
  } catch (error) {
    if (error.status !== 404 && error.status !== 503) throw error;
    without = error.status === 404 ? 'this daemon keeps none' : error.message;
    return null;
  }
}

function timed(items) {
  let last = NaN;
  for (const item of items) {
    item.at = millis(item.time);
    if (!Number.isFinite(item.at)) item.at = last; // A gap of the feed has no time of its own.
    last = item.at;
  }
  return items.filter((item) => Number.isFinite(item.at));
}

/**
 * Events, and notes of the history, of the last `range` (as 15m): { items, samples, complete, from }. `complete` is false if older ones of
 * that time are missing.
 */
export async function readPast(range, pod) {
  const since = range === '7d' ? '168h' : range;
  const about = pod ? (named(pod) ? { uid: pod.uid } : { pod: `${pod.namespace}/${pod.name}` }) : {};
  const items = await fromHistory({ since, type: pod ? undefined : EVENTS, ...about });
  if (items) {
    const [samples, restarts] = await Promise.all([
      pod ? [] : fromHistory({ since, type: 'Sample' }),
      pod ? fromHistory({ since, type: 'DaemonStarted,DaemonStopped' }) : [],
    ]);
    const merged = [...items, ...(restarts ?? [])].sort((a, b) => a.id - b.id);
    await crashes(merged);
    return { items: timed(merged), samples: timed(samples ?? []), complete: items.length < MOST, history: true };
  }
  const filter = pod ? (named(pod) ? { namespace: pod.namespace } : { namespace: pod.namespace, pod: pod.name }) : {};
  const held = timed(await getLines(path('/api/v1/events', { since, ...filter }), MOST));
  const wanted = pod ? held.filter((item) => !item.pod || (item.pod.name === pod.name && item.pod.namespace === pod.namespace)) : held;
  return { items: wanted, samples: [], complete: !held.some((item) => item.type === 'Gap'), history: false };
}

/** When a daemon that did not stop in good order was last known to run: the entry before the start of the next one. */
async function crashes(items) {
  for (const item of items) {
    if (item.type !== 'DaemonStarted' || !item.previous || item.previous.clean) continue;
    const [before] = await fromHistory({ before: item.id, order: 'newest', limit: 1 }) ?? [];
    item.unseenSince = before?.time;
  }
}

// The lives of a pod's containers, from its status and its events. Pure: it decides what the timeline shows and what is not known.

import { millis } from './format.js';
import { troubleKey } from './series.js';

/** When the runtime says that it happened: the event came this much later. */
const happened = (event) => event.at - (event.lag ?? 0) * 1000;

/** Good, bad or idle, by how a container ended. */
function tone(life) {
  if (life.listed) return 'unknown';
  if (life.to === null) return life.state === 'Created' ? 'created' : 'running';
  if (life.exit === 0) return 'completed';
  return life.exit === undefined && !life.reason ? 'unknown' : 'failed';
}

/** In a few words: `exit 137 · OOMKilled`. */
export function ending(life) {
  if (life.listed) return `${life.listed} by the lists; more is not known`;
  if (life.to === null) return life.state === 'Created' ? 'not started' : 'running';
  const parts = [];
  if (life.exit !== undefined) parts.push(`exit ${life.exit}`);
  if (life.reason) parts.push(life.reason);
  return parts.join(' · ') || 'ended; how is not known';
}

/**
 * `items`: events and notes of the pod, the oldest first; `status`: the pod as /api/v1/runtime/pods has it, null if it is gone.
 * Returns { lanes: [{ name, kind, bars }], troubles, gaps, from, to }. A bar has `from` and `to` (null while it runs), and says with
 * `fromKnown` and `toKnown` whether these are the real times.
 */
export function lives(items, status, now) {
  const found = new Map();
  const gaps = unseen(items);
  const life = (kind, id, name, attempt) => {
    if (!found.has(id)) {
      found.set(id, { kind, id, name, attempt, from: NaN, to: null, fromKnown: false, toKnown: true, seen: NaN, state: 'Running' });
    }
    return found.get(id);
  };
  for (const item of items) if (item.subject && Number.isFinite(item.at)) fromEvent(item, life);
  for (const container of status?.containers ?? []) fromContainer(container, life);
  for (const sandbox of status?.sandboxes ?? []) fromSandbox(sandbox, life);
  // The runtime lists it in a state that it does not explain.
  for (const part of status?.stale ?? []) {
    const one = found.get(part.id);
    if (one && part.listed && part.listed !== one.state) one.listed = part.listed;
  }
  const present = new Set([...status?.containers ?? [], ...status?.sandboxes ?? []].map((object) => object.id));
  for (const one of found.values()) {
    // It ended while nobody looked: not before it was last seen.
    if (one.to === null && !present.has(one.id)) {
      const gap = gaps.find((candidate) => candidate.from >= one.seen);
      [one.to, one.toKnown] = [gap ? gap.from : one.seen, false];
    }
    if (!Number.isFinite(one.from)) [one.from, one.fromKnown] = [one.seen, false];
    one.tone = tone(one);
  }
  const bars = [...found.values()].filter((one) => Number.isFinite(one.from));
  const troubles = troublesOf(items);
  const times = bars.flatMap((bar) => [bar.from, bar.to ?? now]);
  return { lanes: lanesOf(bars), troubles, gaps, from: Math.min(now - 60_000, ...times), to: now };
}

function fromEvent(event, life) {
  const { subject } = event;
  const at = happened(event);
  if (subject.kind === 'sandbox') {
    if (event.type !== 'PodSandboxChanged') return;
    const one = life('sandbox', subject.id, 'sandbox', 0);
    one.seen = event.at;
    if (subject.state === 'Ready') {
      if (!Number.isFinite(one.from)) [one.from, one.fromKnown] = [at, !event.initial];
    } else if (one.to === null) [one.to, one.reason] = [at, subject.state === 'NotReady' ? 'NotReady' : 'removed'];
    return;
  }
  const one = life('container', subject.id, subject.name, subject.attempt);
  one.seen = event.at;
  switch (event.type) {
    case 'ContainerCreated':
      [one.created, one.state] = [at, 'Created'];
      if (!Number.isFinite(one.from)) [one.from, one.fromKnown] = [at, !event.initial];
      break;
    case 'ContainerStarted':
      // Of an initial event only the lag says when that was.
      [one.from, one.fromKnown, one.state] = [at, !event.initial || event.lag !== undefined, 'Running'];
      break;
    case 'ContainerDied':
      [one.to, one.exit, one.reason] = [at, event.exit_code, event.reason];
      break;
    case 'ContainerRemoved':
      one.removed = at;
      if (one.to === null) one.to = at;
      break;
    default:
  }
}

function fromContainer(container, life) {
  const one = life('container', container.id, container.name, container.attempt);
  const started = millis(container.started_at ?? container.created_at);
  if (Number.isFinite(started)) [one.from, one.fromKnown] = [started, true];
  one.state = container.state;
  one.image = container.image;
  if (container.state === 'Exited') {
    const finished = millis(container.finished_at);
    if (Number.isFinite(finished)) one.to = finished;
    else if (one.to === null) [one.to, one.toKnown] = [one.seen, false];
    one.exit = container.exit_code ?? one.exit;
    one.reason = container.reason ?? one.reason;
  } else {
    one.to = null;
  }
}

function fromSandbox(sandbox, life) {
  const one = life('sandbox', sandbox.id, 'sandbox', sandbox.attempt);
  const created = millis(sandbox.created_at);
  if (Number.isFinite(created)) [one.from, one.fromKnown] = [created, true];
  if (sandbox.state === 'Ready') one.to = null;
  else if (one.to === null) [one.to, one.toKnown, one.reason] = [Number.isFinite(one.seen) ? one.seen : created, false, 'NotReady'];
}

/** Troubles of the pod: quarantines, hung shims. */
function troublesOf(items) {
  const [open, all] = [new Map(), []];
  for (const item of items) {
    if (item.type === 'TroubleStarted') {
      const trouble = { trouble: item.trouble, from: item.at, to: null, text: item.reason, container: item.subject?.name };
      open.set(troubleKey(item), trouble);
      all.push(trouble);
    } else if (item.type === 'TroubleEnded') {
      const known = open.get(troubleKey(item));
      if (known) known.to = item.at;
      else all.push({ trouble: item.trouble, from: item.at - (item.lasted ?? 0) * 1000, to: item.at, text: item.reason, container: item.subject?.name });
      open.delete(troubleKey(item));
    } else if (item.type === 'DaemonStarted' || item.type === 'DaemonStopped' || (item.type === 'Gap' && item.reason === 'restarted')) {
      // Another run reports what is wrong anew.
      for (const trouble of open.values()) trouble.to = item.at;
      open.clear();
    }
  }
  return all;
}

/** When nothing was seen: no daemon ran, or its events are no longer held. */
export function unseen(items) {
  const gaps = [];
  let [stopped, last] = [NaN, NaN];
  for (const item of items) {
    if (item.type === 'DaemonStarted') {
      const from = Number.isFinite(stopped) ? stopped : millis(item.unseenSince);
      if (item.previous && Number.isFinite(from)) gaps.push({ from, to: item.at, why: item.previous.clean ? 'no daemon ran' : 'the daemon was killed or crashed' });
      stopped = NaN;
    } else if (item.type === 'DaemonStopped') {
      stopped = item.at;
    } else if (item.type === 'Gap') {
      const why = item.reason === 'restarted' ? 'the daemon restarted' : 'events are missing';
      if (Number.isFinite(last) && item.at >= last) gaps.push({ from: last, to: Math.max(item.at, last + 1), why });
    }
    if (Number.isFinite(item.at)) last = item.at;
  }
  return gaps;
}

/** The sandbox first, then the containers in the order of their first start. */
function lanesOf(bars) {
  const lanes = new Map();
  const order = (bar) => (bar.kind === 'sandbox' ? -Infinity : bar.from);
  for (const bar of bars.sort((a, b) => order(a) - order(b) || a.from - b.from)) {
    const key = `${bar.kind}\n${bar.name}`;
    if (!lanes.has(key)) lanes.set(key, { kind: bar.kind, name: bar.name, bars: [] });
    lanes.get(key).bars.push(bar);
  }
  return [...lanes.values()];
}

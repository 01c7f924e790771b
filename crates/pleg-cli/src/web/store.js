// What the page knows of the node: pods, health, events, and whether the daemon answers. One writer; views listen.
//
// Order: the events are followed first, and the pods are read once all held events were read, so that no change falls in between.
// An event marks its pod; marked pods are read again a moment later, a few by name and many as one list.

import { getJson, getText, podsQuery } from './api.js';
import { Follower } from './follow.js';
import { millis } from './format.js';

const KEPT_EVENTS = 5_000; // in memory; the daemon holds more
const SOON = 150; // ms from an event to the reading of its pod
const FEW = 8; // pods that are read one by one
const LIST_PAUSE = 700; // ms between two lists of all pods
const LIST_ANYWAY = 30_000; // ms: what changes without an event
const HEALTH_EVERY = 2_000;
const RELISTS_EVERY = 5_000;
const HIDDEN_FOR = 30_000; // ms: a page that nobody sees gives its connection back

const HEALTH_EVENTS = new Set(['PlegHealthy', 'PlegNotHealthy', 'PlegDegraded', 'TroubleStarted', 'TroubleEnded']);

/** Events: pods, health, about, item (detail: event or gap), backlog, connection, relists. */
export class Store extends EventTarget {
  constructor(since = '15m') {
    super();
    this.pods = new Map();
    this.loaded = false;
    this.health = null;
    this.about = null;
    this.events = [];
    this.relists = []; // {time, count, sum}: differences of the daemon's counters
    this.connection = { state: 'connecting', since: Date.now(), why: '' };
    this.instance = null;
    this.marked = new Map();
    this.listAll = false;
    this.listedAt = 0;
    this.timer = null;
    this.follower = new Follower(since, {
      item: (item, backlog) => this.take(item, backlog),
      live: () => this.live(),
      lost: (why) => this.lost(why),
    });
  }

  start() {
    this.follower.start();
    this.readHealth();
    this.readAbout();
    this.readRelists();
    setInterval(() => this.visible() && this.readHealth(), HEALTH_EVERY);
    setInterval(() => this.visible() && this.readRelists(), RELISTS_EVERY);
    setInterval(() => this.visible() && this.mark(null), LIST_ANYWAY);
    document.addEventListener('visibilitychange', () => this.visibility());
    return this;
  }

  tell(type, detail) {
    this.dispatchEvent(new CustomEvent(type, { detail }));
  }

  visible() {
    return document.visibilityState === 'visible' && this.connection.state !== 'asleep';
  }

  /** Browsers allow six connections to one address: pages in the background must not use them up. */
  visibility() {
    clearTimeout(this.sleepTimer);
    if (document.visibilityState === 'hidden') {
      this.sleepTimer = setTimeout(() => {
        this.follower.stop();
        this.connected('asleep', 'this page is in the background');
      }, HIDDEN_FOR);
    } else if (this.connection.state === 'asleep') {
      this.connected('connecting', '');
      this.follower.start();
      this.readHealth();
    }
  }

  connected(state, why) {
    if (this.connection.state === state && this.connection.why === why) return;
    const since = this.connection.state === state ? this.connection.since : Date.now();
    this.connection = { state, since, why, before: this.connection };
    this.tell('connection');
  }

  live() {
    this.connected('live', '');
    this.tell('backlog');
    this.mark(null);
    this.readHealth();
  }

  lost(why) {
    this.connected('lost', why);
  }

  take(item, backlog) {
    item.at = millis(item.time);
    if (item.type === 'Gap') {
      item.at = backlog && this.events.length ? this.events.at(-1).at : Date.now();
      // What was known before may be wrong.
      if (item.reason === 'restarted') this.readAbout();
    }
    this.events.push(item);
    if (this.events.length > KEPT_EVENTS + 500) this.events.splice(0, 500);
    if (backlog) return;
    if (item.pod) this.mark(item.pod);
    if (HEALTH_EVENTS.has(item.type)) {
      this.readHealth();
      if (!item.pod) this.mark(null);
    }
    this.tell('item', item);
  }

  /** This pod has to be read again; null: all of them. */
  mark(pod) {
    if (pod) this.marked.set(`${pod.namespace}\n${pod.name}`, pod);
    else this.listAll = true;
    if (!this.loaded) this.listAll = true;
    if (this.timer || this.connection.state !== 'live') return;
    const all = this.listAll || this.marked.size > FEW;
    const wait = all ? Math.max(SOON, this.listedAt + LIST_PAUSE - Date.now()) : SOON;
    this.timer = setTimeout(() => this.readMarked(), this.loaded ? wait : 0);
  }

  async readMarked() {
    const all = this.listAll || this.marked.size > FEW;
    const marked = [...this.marked.values()];
    this.marked.clear();
    this.listAll = false;
    try {
      if (all) await this.readAll();
      else await Promise.all(marked.map((pod) => this.readPod(pod)));
    } catch (error) {
      // The follower reconnects, and then all are read.
      if (error.status) this.tell('problem', error.message);
      this.listAll = true;
    }
    this.timer = null;
    this.tell('pods');
    if (this.marked.size || this.listAll) this.mark(this.listAll ? null : this.marked.values().next().value);
  }

  async readAll() {
    const rows = await getJson(podsQuery(null, true));
    this.listedAt = Date.now();
    this.pods = new Map(rows.map((row) => [row.pod.uid, prepare(row)]));
    this.loaded = true;
  }

  async readPod(pod) {
    const rows = await getJson(podsQuery(pod, true));
    const same = (row) => row.pod.namespace === pod.namespace && row.pod.name === pod.name;
    for (const [uid, row] of this.pods) if (same(row)) this.pods.delete(uid);
    for (const row of rows) if (same(row)) this.pods.set(row.pod.uid, prepare(row));
  }

  async readHealth() {
    if (this.readingHealth) {
      this.healthAgain = true;
      return;
    }
    this.readingHealth = true;
    try {
      this.health = await getJson('/api/v1/health');
      this.health.read = Date.now();
      if (this.instance && this.instance !== this.health.instance) this.tell('restarted');
      this.instance = this.health.instance;
      this.tell('health');
    } catch {
      // The follower says that the daemon is gone.
    }
    this.readingHealth = false;
    if (this.healthAgain) {
      this.healthAgain = false;
      this.readHealth();
    }
  }

  async readAbout() {
    try {
      this.about = await getJson('/api/v1/debug/about');
      this.tell('about');
    } catch {
      // As above.
    }
  }

  /** Relist times are in the metrics only: sum and number since the start, of which the differences count. */
  async readRelists() {
    let now;
    try {
      const text = await getText('/metrics');
      const value = (name) => Number(text.match(new RegExp(`^${name} (\\S+)$`, 'm'))?.[1] ?? NaN);
      const base = 'kubelet_pleg_relist_duration_seconds';
      now = { time: Date.now(), count: value(`${base}_count`), sum: value(`${base}_sum`) };
    } catch {
      return;
    }
    const before = this.relistTotals;
    this.relistTotals = now;
    if (!before || now.count <= before.count) return;
    this.relists.push({ time: now.time, count: now.count - before.count, sum: now.sum - before.sum });
    if (this.relists.length > 20_000) this.relists.shift();
    this.tell('relists');
  }
}

/** With what the table sorts and filters by. */
function prepare(row) {
  row.created = millis(row.created_at);
  row.changed = millis(row.changed_at);
  row.key = `${row.pod.namespace}/${row.pod.name}`.toLowerCase();
  row.order = row.key.replace(/\d+/g, (digits) => digits.padStart(12, '0')); // web-2 before web-10
  row.ip = row.ips[0] ?? '';
  return row;
}

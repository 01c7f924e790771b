// The page of one pod: what is wrong with it, the lives of its containers over time, and its events.

import { getJson, podsQuery } from './api.js';
import { h, setAttribute, setText, show } from './dom.js';
import { age, clock, count, duration, millis, moment, podState, podTone, shortId, shortIds } from './format.js';
import { causeItem, nextCommands } from './health.js';
import { ending, lives } from './lives.js';
import { eventRow } from './log.js';
import { noHistory, readPast } from './past.js';
import * as query from './query.js';
import { Timeline } from './timeline.js';

const RANGES = ['1h', '6h', '24h', '7d'];
const KEPT = 5_000; // events and notes of the pod
const LIVES = 100; // rows of the table
const ROWS = 200;

class PodPage {
  constructor(store, pod) {
    this.store = store;
    this.pod = pod;
    this.status = null;
    this.items = [];
    this.range = RANGES.includes(query.read(location.search).range) ? query.read(location.search).range : '24h';
    this.build();
    this.onitem = ({ detail }) => this.take(detail);
    this.onbacklog = () => this.load();
    this.onhealth = () => this.readStatus();
    store.addEventListener('item', this.onitem);
    store.addEventListener('backlog', this.onbacklog);
    store.addEventListener('health', this.onhealth);
    this.timer = setInterval(() => this.fill(), 1000);
    this.load();
  }

  close() {
    this.store.removeEventListener('item', this.onitem);
    this.store.removeEventListener('backlog', this.onbacklog);
    this.store.removeEventListener('health', this.onhealth);
    clearInterval(this.timer);
    clearTimeout(this.soon);
    this.timeline.close();
  }

  build() {
    this.badge = h('span', { class: 'badge big', id: 'state' }, '…');
    this.facts = h('dl', { class: 'facts' });
    this.causes = h('ul', { class: 'causes', id: 'causes' });
    this.timeline = new Timeline();
    this.note = h('p', { class: 'muted note', id: 'past' });
    this.ranges = RANGES.map((name) => h('button', { class: 'chip', type: 'button', 'aria-pressed': String(name === this.range), onclick: () => this.choose(name) }, name));
    this.lives = h('tbody');
    this.events = h('ol', { class: 'events tall', 'aria-label': 'Events of this pod, the newest first', tabindex: '0' });
    const head = ['Container', 'Attempt', 'From', 'Lasted', 'End', 'Id'];
    this.element = h('div', { class: 'pod-page' },
      h('nav', { class: 'crumbs', 'aria-label': 'Where you are' }, h('a', { href: '/', 'data-link': true }, 'Node'), ' / ', h('span', {}, this.pod.namespace)),
      h('section', { class: 'card', 'aria-labelledby': 'pod-title' },
        h('div', { class: 'verdict' }, h('h1', { id: 'pod-title' }, this.pod.name), this.badge),
        this.facts, this.causes, nextCommands(this.pod)),
      h('section', { class: 'card', 'aria-labelledby': 'timeline-title' }, this.timeline.element,
        h('div', { class: 'card-foot' }, this.note, h('span', { class: 'grow' }), h('div', { class: 'chips', role: 'group', 'aria-label': 'How far back' }, this.ranges))),
      h('div', { class: 'columns' },
        h('section', { class: 'card', 'aria-labelledby': 'lives-title' }, h('div', { class: 'card-head' }, h('h2', { id: 'lives-title' }, 'Lives')),
          h('div', { class: 'table-box', tabindex: '0', role: 'region', 'aria-labelledby': 'lives-title' },
            h('table', { class: 'plain', id: 'lives' }, h('thead', {}, h('tr', {}, head.map((name) => h('th', { scope: 'col' }, name)))), this.lives))),
        h('section', { class: 'card log', 'aria-labelledby': 'events-title' }, h('div', { class: 'card-head' }, h('h2', { id: 'events-title' }, 'Events')), this.events)));
  }

  choose(range) {
    this.range = range;
    query.replace({ range });
    this.ranges.forEach((button) => button.setAttribute('aria-pressed', String(button.textContent === range)));
    this.timeline.view = null;
    this.load();
  }

  mine(item) {
    return !item.pod || (item.pod.namespace === this.pod.namespace && item.pod.name === this.pod.name);
  }

  async load() {
    const turn = this.turn = (this.turn ?? 0) + 1;
    await this.readStatus();
    try {
      const past = await readPast(this.range, { ...this.pod, uid: this.status?.pod.uid });
      if (turn !== this.turn) return;
      const last = past.items.findLast((item) => item.seq);
      const later = this.store.events.filter((item) => item.pod && this.mine(item) && (!last || (item.instance === last.instance ? item.seq > last.seq : item.at > last.at)));
      this.items = [...past.items, ...later];
      this.past = past;
    } catch (error) {
      if (turn === this.turn && error.status) setText(this.note, `The past cannot be read: ${error.message}`);
    }
    this.fill(true);
  }

  async readStatus() {
    try {
      const pods = await getJson(podsQuery(this.pod, false));
      const mine = pods.filter((one) => one.pod.namespace === this.pod.namespace && one.pod.name === this.pod.name);
      const newest = (one) => Math.max(0, ...one.sandboxes.map((sandbox) => millis(sandbox.created_at) || 0));
      const found = mine.sort((a, b) => newest(b) - newest(a))[0] ?? null;
      if (!found && this.status) this.gone = true;
      else if (found) [this.status, this.gone] = [found, false];
      this.read = true;
    } catch {
      // The bar on top says that the daemon is gone.
    }
    this.fill(true);
  }

  take(item) {
    if (!item.pod || !this.mine(item)) return;
    this.items.push(item);
    if (this.items.length > KEPT) this.items.shift();
    clearTimeout(this.soon);
    this.soon = setTimeout(() => this.readStatus(), 100);
    this.fill(true);
  }

  /** `all`: more than the time has changed. */
  fill(all = false) {
    const now = Date.now();
    const data = lives(this.items, this.gone ? null : this.status, now);
    this.fillHead(now);
    this.timeline.update(data);
    if (!all) return;
    this.fillLives(data, now);
    const shown = this.items.filter((item) => item.pod && item.type !== 'PodStatusChanged' || item.type === 'Gap' || item.type.startsWith('Daemon'));
    show(this.events, shown.length ? shown.slice(-ROWS).reverse().map((item) => eventRow(item, true)) : h('li', { class: 'empty' }, 'No event of this pod in this time.'));
    const why = noHistory();
    setText(this.note, why ? `History is off (${why}): events begin where the daemon still holds them` : this.past && !this.past.complete ? 'older events of this time are not shown' : '');
  }

  fillHead(now) {
    const { status } = this;
    if (!status) {
      setText(this.badge, this.read ? (this.items.length ? 'Removed' : 'Unknown') : '…');
      setAttribute(this.badge, 'data-tone', this.read && !this.items.length ? 'bad' : 'gone');
      if (this.read) show(this.facts, h('div', {}, h('dt', {}, 'This pod'), h('dd', {}, this.items.length ? 'The runtime no longer has it.' : 'The runtime does not have it, and no event of it is known.')));
      return;
    }
    const row = { ...status, quarantined: Boolean(status.error), trouble: status.causes?.[0]?.trouble };
    if (this.gone) Object.assign(row, { state: 'Removed', quarantined: false, trouble: null, status_stale: null });
    setText(this.badge, podState(row));
    setAttribute(this.badge, 'data-tone', podTone(row));
    const created = Math.min(...status.sandboxes.map((sandbox) => millis(sandbox.created_at)).filter(Number.isFinite));
    const images = [...new Set(status.containers.map((container) => shortIds(container.image)))];
    const facts = [
      ['Containers', `${status.running} of ${count(status.total, 'container')} running`],
      ['Restarts', status.restarts],
      ['IP', status.ips.join(', ') || '–'],
      ['Age', Number.isFinite(created) ? age((now - created) / 1000) : '–'],
      ['Sandbox', status.sandboxes.length ? `${shortId(status.sandboxes[0].id)} ${status.sandboxes[0].state}` : 'none'],
      ['UID', status.pod.uid],
      ['Images', images.join(', ') || '–'],
    ];
    const key = JSON.stringify(facts);
    if (key !== this.factKey) show(this.facts, facts.map(([name, value]) => h('div', {}, h('dt', {}, name), h('dd', {}, value))));
    this.factKey = key;
    const causes = this.gone ? [] : status.causes ?? [];
    const words = JSON.stringify([causes, status.status_stale]);
    if (words === this.causeKey) return;
    this.causeKey = words;
    const stale = status.status_stale && !this.gone ? h('li', { class: 'cause' }, h('p', { class: 'seen' }, `Nothing new is seen of any pod${status.status_stale.as_of ? ` since ${clock(millis(status.status_stale.as_of))}` : ''}: ${status.status_stale.why}`)) : null;
    show(this.causes, stale, causes.map((cause) => causeItem(cause, false)));
  }

  fillLives(data, now) {
    const bars = data.lanes.filter((lane) => lane.kind === 'container').flatMap((lane) => lane.bars).sort((a, b) => b.from - a.from);
    show(this.lives, bars.slice(0, LIVES).map((bar) => h('tr', {},
      h('td', {}, bar.name),
      h('td', { class: 'n' }, bar.attempt),
      h('td', {}, `${bar.fromKnown ? '' : 'before '}${moment(bar.from)}`),
      h('td', { class: 'n' }, duration(((bar.to ?? now) - bar.from) / 1000)),
      h('td', {}, h('span', { class: 'badge', data: { tone: { running: 'good', failed: 'bad', completed: 'idle', created: 'idle' }[bar.tone] ?? 'warn' } }, ending(bar))),
      h('td', { class: 'mono', title: bar.id }, shortId(bar.id)))));
    if (!bars.length) show(this.lives, h('tr', {}, h('td', { colspan: 6, class: 'muted' }, 'No container of this pod in this time.')));
  }
}

/** Builds the page of a pod. */
export function podPage(store, pod) {
  const page = new PodPage(store, pod);
  return {
    element: page.element,
    title: () => `${pod.namespace}/${pod.name} · pleg`,
    keys: { '+': () => page.timeline.zoom(0.5), '-': () => page.timeline.zoom(2) },
    close: () => page.close(),
  };
}

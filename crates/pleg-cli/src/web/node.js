// The page of the node: health on top, charts, pods, events.

import { eventsChart, lagChart, relistChart, troubleChart } from './charts.js';
import { h, setText, show } from './dom.js';
import { moment } from './format.js';
import { HealthPanel } from './health.js';
import { unseen } from './lives.js';
import { EventLog } from './log.js';
import { noHistory, readPast } from './past.js';
import * as query from './query.js';
import { Series } from './series.js';
import { PodTable } from './table.js';

/** Ranges of the charts, and their milliseconds. */
export const RANGES = { '15m': 900_000, '1h': 3_600_000, '6h': 21_600_000, '24h': 86_400_000 };
const BARS = 60;
const REDRAW = 1_000;

/** The charts with their range. */
class Charts {
  constructor(store) {
    this.store = store;
    const { range } = query.read(location.search);
    this.range = Object.hasOwn(RANGES, range) ? range : '15m';
    this.series = new Series();
    this.charts = [eventsChart(), lagChart(), relistChart(), troubleChart()];
    this.note = h('p', { class: 'muted note', id: 'past' });
    this.buttons = Object.keys(RANGES).map((name) => h('button', {
      class: 'chip', type: 'button', 'aria-pressed': String(name === this.range), onclick: () => this.choose(name),
    }, name));
    this.element = h('section', { class: 'over-time', 'aria-label': 'Charts' },
      h('div', { class: 'section-head' }, h('h2', {}, 'Over time'), this.note, h('span', { class: 'grow' }), h('div', { class: 'chips', role: 'group', 'aria-label': 'Range' }, this.buttons)),
      h('div', { class: 'charts' }, this.charts.map((chart) => chart.element)));
    this.onitem = ({ detail }) => this.series.add(detail);
    this.onrelists = () => this.series.addRelists(this.store.relists.at(-1));
    this.onrestart = () => this.load();
    store.addEventListener('item', this.onitem);
    store.addEventListener('relists', this.onrelists);
    store.addEventListener('backlog', this.onrestart);
    this.timer = setInterval(() => this.draw(), REDRAW);
    this.load();
  }

  close() {
    this.store.removeEventListener('item', this.onitem);
    this.store.removeEventListener('relists', this.onrelists);
    this.store.removeEventListener('backlog', this.onrestart);
    clearInterval(this.timer);
    this.charts.forEach((chart) => chart.close());
  }

  choose(range) {
    this.range = range;
    query.replace({ range });
    this.buttons.forEach((button) => button.setAttribute('aria-pressed', String(button.textContent === range)));
    this.load();
  }

  /** Reads the past anew; what came meanwhile follows it. */
  async load() {
    const turn = this.turn = (this.turn ?? 0) + 1;
    let past;
    try {
      past = await readPast(this.range);
    } catch (error) {
      if (turn === this.turn && error.status) setText(this.note, `The past cannot be read: ${error.message}`);
      return;
    }
    if (turn !== this.turn) return;
    const series = new Series();
    let last;
    for (const item of past.items) {
      if (item.type.startsWith('Daemon')) series.restarted(item.at);
      else if (item.type !== 'Gap') series.add(item);
      if (item.seq) last = item;
    }
    series.gaps = unseen(past.items);
    for (const item of this.store.events) {
      const newer = last ? (item.instance === last.instance ? item.seq > last.seq : item.at > last.at) : true;
      if (newer && item.type !== 'Gap') series.add(item);
    }
    const began = this.store.relists[0]?.time ?? Infinity;
    for (const sample of past.samples) if (sample.at < began) addSample(series, sample);
    for (const relist of this.store.relists) series.addRelists(relist);
    this.series = series;
    this.past = past;
    this.draw();
  }

  draw() {
    const to = Date.now();
    const view = this.series.view(to - RANGES[this.range], to, BARS);
    this.charts.forEach((chart) => chart.update(view));
    const why = noHistory();
    const oldest = Number.isFinite(this.series.oldest) ? moment(this.series.oldest) : null;
    if (why && this.series.oldest > view.from + 60_000) setText(this.note, `History is off${oldest ? `: what is still held begins at ${oldest}` : ''}`);
    else if (this.past && !this.past.complete) setText(this.note, oldest ? `since ${oldest}: older events of this time are not shown` : '');
    else setText(this.note, '');
  }
}

/** A sample of the history: how long the relists took, as a histogram of powers of 2^(1/4) µs. */
function addSample(series, sample) {
  const { relists } = sample;
  if (!relists?.count) return;
  let sum = 0;
  for (const [bucket, n] of Object.entries(relists.buckets)) sum += n * 2 ** ((Number(bucket) - 0.5) / 4) / 1e6;
  series.addRelists({ time: sample.at, count: relists.count, sum, most: relists.max_seconds });
}

/** Builds the page; `open(path)` goes to another one. */
export function nodePage(store, open) {
  const health = new HealthPanel(store);
  const charts = new Charts(store);
  const table = new PodTable(store, open);
  const log = new EventLog(store);
  const element = h('div', { class: 'node-page' }, health.element, charts.element, h('div', { class: 'columns' }, table.element, log.element));
  return {
    element,
    title: () => `${store.health && store.health.level !== 'Healthy' ? `${store.health.level} · ` : ''}pleg`,
    keys: { '/': () => { table.search.focus(); table.search.select(); }, p: () => log.toggle() },
    close: () => [health, charts, table, log].forEach((part) => part.close()),
  };
}

/** The page of an address that does not exist. */
export function nothingPage() {
  const element = h('div', { class: 'card' }, h('h1', {}, 'No such page'), h('p', {}, h('a', { href: '/', 'data-link': true }, 'To the node')));
  show(element, ...element.childNodes);
  return { element, title: () => 'pleg', keys: {}, close: () => {} };
}

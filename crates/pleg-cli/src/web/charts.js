// Charts of the node over time: events, their lag, relist times, troubles. Drawn as SVG, described in words for those who do not see it.

import { h, s, setAttribute, setText, show } from './dom.js';
import { clock, count, duration, moment, number, troubleWord } from './format.js';
import { linearTicks, logPart, timeLabel, timeTicks } from './scale.js';
import { quantile } from './series.js';

const HEIGHT = 132;
const PAD = { left: 44, right: 8, top: 8, bottom: 20 };

/** One chart: `draw(view, area)` returns { shapes, ticks, words, tip }. */
export class Chart {
  constructor(title, note, draw) {
    this.draw = draw;
    this.svg = s('svg', { class: 'chart', role: 'img', height: HEIGHT, 'aria-label': title, preserveAspectRatio: 'none' });
    this.tip = h('div', { class: 'tip', hidden: true });
    this.headline = h('span', { class: 'headline' });
    this.legend = h('div', { class: 'legend' });
    this.title = title;
    this.element = h('section', { class: 'card chart-card', 'aria-label': title },
      h('div', { class: 'card-head' }, h('h3', { title: note }, title), h('span', { class: 'grow' }), this.headline),
      h('div', { class: 'plot' }, this.svg, this.tip), this.legend);
    this.svg.addEventListener('pointermove', (event) => this.point(event));
    this.svg.addEventListener('pointerleave', () => { this.tip.hidden = true; this.cursor?.setAttribute('opacity', 0); });
    this.observer = new ResizeObserver(() => this.view && this.update(this.view));
    this.observer.observe(this.svg);
  }

  close() {
    this.observer.disconnect();
  }

  update(view) {
    this.view = view;
    const width = this.svg.clientWidth || 300;
    const area = { left: PAD.left, right: width - PAD.right, top: PAD.top, bottom: HEIGHT - PAD.bottom };
    area.x = (at) => area.left + ((at - view.from) / (view.to - view.from)) * (area.right - area.left);
    area.y = (part) => area.bottom - part * (area.bottom - area.top);
    this.area = area;
    const drawn = this.draw(view, area);
    this.drawn = drawn;
    const { ticks, step } = timeTicks(view.from, view.to, ((view.to - view.from) * 70) / (area.right - area.left));
    this.cursor = s('line', { class: 'cursor', y1: area.top, y2: area.bottom, opacity: 0 });
    setAttribute(this.svg, 'viewBox', `0 0 ${width} ${HEIGHT}`);
    show(this.svg,
      view.gaps.map((gap) => {
        const [x1, x2] = [Math.max(area.left, area.x(gap.from)), Math.min(area.right, area.x(gap.to))];
        return s('rect', { class: 'gap', x: x1, y: area.top, width: Math.max(2, x2 - x1), height: area.bottom - area.top });
      }),
      drawn.ticks.map(([part, label]) => [
        s('line', { class: 'rule', x1: area.left, x2: area.right, y1: area.y(part), y2: area.y(part) }),
        s('text', { class: 'tick', x: area.left - 6, y: area.y(part) + 3.5, 'text-anchor': 'end' }, label),
      ]),
      ticks.map((at) => s('text', { class: 'tick', x: area.x(at), y: HEIGHT - 5, 'text-anchor': area.x(at) > area.right - 14 ? 'end' : 'middle' }, timeLabel(at, step))),
      drawn.shapes, this.cursor);
    setText(this.headline, drawn.headline ?? '');
    show(this.legend, (drawn.legend ?? []).map(([name, label]) => h('span', { class: 'key' }, h('i', { class: `swatch ${name}` }), label)));
    setAttribute(this.svg, 'aria-label', `${this.title}: ${drawn.words}`);
  }

  point(event) {
    if (!this.drawn?.tip) return;
    const box = this.svg.getBoundingClientRect();
    const x = event.clientX - box.left;
    const { view, area } = this;
    if (x < area.left || x > area.right) return;
    const at = view.from + ((x - area.left) / (area.right - area.left)) * (view.to - view.from);
    const lines = this.drawn.tip(at);
    this.tip.hidden = !lines;
    if (!lines) return;
    show(this.tip, lines.map((line, index) => h(index ? 'div' : 'strong', {}, line)));
    for (const name of ['x1', 'x2']) this.cursor.setAttribute(name, x);
    this.cursor.setAttribute('opacity', 1);
    const left = Math.min(Math.max(0, x + 12), box.width - this.tip.offsetWidth - 4);
    this.tip.style.transform = `translate(${Math.max(0, left)}px, 4px)`;
  }
}

const bucketAt = (view, at) => view.buckets[Math.min(view.buckets.length - 1, Math.max(0, Math.floor((at - view.from) / view.step)))];

const span = (view, bucket) => `${moment(bucket.at)} – ${clock(bucket.at + view.step)}`;

const nothing = (area, text) => s('text', { class: 'none', x: (area.left + area.right) / 2, y: (area.top + area.bottom) / 2, 'text-anchor': 'middle' }, text);

/** Events per bucket, stacked by kind. */
export function eventsChart() {
  const kinds = [['failed', 'failed'], ['ended', 'exit 0'], ['started', 'started'], ['other', 'other']];
  return new Chart('Events', 'Changes that were published, by kind', (view, area) => {
    const most = Math.max(1, ...view.buckets.map((bucket) => bucket.total));
    const ticks = linearTicks(most).filter(Number.isInteger);
    const top = ticks.at(-1);
    const width = Math.max(1, (area.right - area.left) / view.buckets.length - 1);
    const shapes = view.buckets.flatMap((bucket) => {
      let base = 0;
      return kinds.filter(([kind]) => bucket[kind]).map(([kind]) => {
        const [low, high] = [area.y(base / top), area.y((base + bucket[kind]) / top)];
        base += bucket[kind];
        return s('rect', { class: `col ${kind}`, x: area.x(bucket.at), y: high, width, height: Math.max(0.5, low - high) });
      });
    });
    const sum = (kind) => view.buckets.reduce((n, bucket) => n + bucket[kind], 0);
    return {
      shapes,
      ticks: ticks.map((value) => [value / top, number(value)]),
      legend: kinds,
      headline: count(sum('total'), 'event'),
      words: `${count(sum('total'), 'event')}, ${number(sum('started'))} starts, ${number(sum('failed'))} exits with an error; at most ${number(most)} in ${duration(view.step / 1000)}`,
      tip: (at) => {
        const bucket = bucketAt(view, at);
        return [span(view, bucket), ...kinds.filter(([kind]) => bucket[kind]).map(([kind, label]) => `${label}: ${number(bucket[kind])}`), bucket.total ? null : 'no events'].filter(Boolean);
      },
    };
  });
}

/** Lag of events: median and longest, on a logarithmic scale. */
export function lagChart() {
  return new Chart('Event lag', 'From the runtime’s timestamp of a change to its event', (view, area) => {
    const with_ = view.buckets.filter((bucket) => bucket.lags.length);
    const most = Math.max(0.1, ...with_.map((bucket) => bucket.most));
    const powers = [0.001, 0.01, 0.1, 1, 10, 100, 1000];
    const top = powers.find((power) => power >= most) ?? 1000;
    const least = 0.001;
    const y = (value) => area.y(logPart(value, least, top));
    const x = (bucket) => area.x(bucket.at + view.step / 2);
    const shapes = with_.map((bucket) => s('g', {},
      s('line', { class: 'range', x1: x(bucket), x2: x(bucket), y1: y(bucket.median), y2: y(bucket.most) }),
      s('circle', { class: 'worst', cx: x(bucket), cy: y(bucket.most), r: 2 }),
      s('circle', { class: 'median', cx: x(bucket), cy: y(bucket.median), r: 2.6 })));
    const all = with_.flatMap((bucket) => bucket.lags).sort((a, b) => a - b);
    const worst = Math.max(0, ...with_.map((bucket) => bucket.most));
    if (!all.length) shapes.push(nothing(area, 'no events'));
    return {
      shapes,
      ticks: powers.filter((power) => power <= top).map((power) => [logPart(power, least, top), duration(power)]),
      legend: [['median', 'median'], ['worst', 'longest']],
      headline: all.length ? `median ${duration(quantile(all, 0.5))}` : '',
      words: all.length ? `median ${duration(quantile(all, 0.5))}, longest ${duration(worst)}` : 'no events',
      tip: (at) => {
        const bucket = bucketAt(view, at);
        if (!bucket.lags.length) return [span(view, bucket), 'no events'];
        return [span(view, bucket), `median ${duration(bucket.median)}`, `longest ${duration(bucket.most)}`];
      },
    };
  });
}

/** Relist times: mean and, where it is known, the longest. */
export function relistChart() {
  return new Chart('Relist time', 'Duration of full relists with their inspections; rare while events are trusted', (view, area) => {
    const with_ = view.buckets.filter((bucket) => bucket.relists);
    const most = Math.max(0.001, ...with_.map((bucket) => bucket.relistMost));
    const ticks = linearTicks(most);
    const top = ticks.at(-1);
    const x = (bucket) => area.x(bucket.at + view.step / 2);
    const points = with_.map((bucket) => `${x(bucket).toFixed(1)},${area.y(bucket.relist / top).toFixed(1)}`);
    const relists = with_.reduce((n, bucket) => n + bucket.relists, 0);
    const mean = with_.reduce((n, bucket) => n + bucket.relistSum, 0) / relists;
    return {
      shapes: [
        points.length > 1 ? s('polyline', { class: 'line', points: points.join(' ') }) : null,
        with_.map((bucket) => s('circle', { class: 'median', cx: x(bucket), cy: area.y(bucket.relist / top), r: 2.2 })),
        relists ? null : nothing(area, 'no full relist yet'),
      ],
      ticks: ticks.map((value) => [value / top, duration(value)]),
      headline: relists ? `mean ${duration(mean)}` : '',
      legend: relists ? [['median', `${count(relists, 'full relist')}`]] : [],
      words: relists ? `${count(relists, 'full relist')}, mean ${duration(mean)}, longest ${duration(most)}` : 'no full relist in this time',
      tip: (at) => {
        const bucket = bucketAt(view, at);
        return bucket.relists ? [span(view, bucket), count(bucket.relists, 'full relist'), `mean ${duration(bucket.relist)}`] : [span(view, bucket), 'no full relist'];
      },
    };
  });
}

const LANES = 5;

/** Troubles: from when to when, one lane for each kind. */
export function troubleChart() {
  return new Chart('Troubles', 'What could not be seen, and for how long', (view, area) => {
    const kinds = [...new Set(view.troubles.map((trouble) => trouble.trouble))].slice(0, LANES);
    const room = (area.bottom - area.top) / Math.max(kinds.length, 3);
    const top = (trouble) => area.top + kinds.indexOf(trouble.trouble) * room;
    const shown = view.troubles.filter((trouble) => kinds.includes(trouble.trouble));
    const shapes = [
      shown.map((trouble) => {
        const [x1, x2] = [Math.max(area.left, area.x(trouble.from)), Math.min(area.right, area.x(trouble.to ?? view.to))];
        return s('rect', { class: `col trouble${trouble.to ? '' : ' open'}`, x: x1, y: top(trouble) + room * 0.42, width: Math.max(3, x2 - x1), height: room * 0.4, rx: 2 });
      }),
      kinds.map((kind, index) => s('text', { class: 'lane', x: area.left + 2, y: area.top + index * room + room * 0.32 }, troubleWord(kind))),
      kinds.length ? null : nothing(area, 'none'),
    ];
    const open = view.troubles.filter((trouble) => !trouble.to).length;
    return {
      shapes,
      ticks: [[0, '']],
      headline: open ? `${number(open)} now` : view.troubles.length ? 'none now' : '',
      words: view.troubles.length ? `${count(view.troubles.length, 'trouble')}, ${number(open)} now: ${kinds.map(troubleWord).join(', ')}` : 'none',
      legend: view.troubles.length ? [['trouble', count(view.troubles.length, 'trouble')]] : [],
      tip: (at) => {
        const here = shown.filter((trouble) => trouble.from <= at && (trouble.to ?? view.to) >= at - view.step).slice(0, 4);
        if (!here.length) return null;
        return [clock(at), ...here.map((trouble) => {
          const where = trouble.pod ? ` ${trouble.pod.namespace}/${trouble.pod.name}` : '';
          return `${troubleWord(trouble.trouble)}${where}: ${duration(((trouble.to ?? view.to) - trouble.from) / 1000)}${trouble.to ? '' : ' so far'}`;
        })];
      },
    };
  });
}

// The timeline of a pod: bars of containers' lives that can be zoomed and moved, by pointer, wheel, touch and keyboard.

import { h, s, setAttribute, setText, show } from './dom.js';
import { clock, duration, moment, shortIds, troubleWord } from './format.js';
import { ending } from './lives.js';
import { timeLabel, timeTicks } from './scale.js';

const LANE = 34;
const TOP = 26; // for the axis
const LEFT = 96;
const SHORTEST = 2_000; // ms: the closest zoom
const MOST_BARS = 400; // in one lane; beyond that they are pixels anyway

export class Timeline {
  constructor() {
    this.svg = s('svg', { class: 'timeline', tabindex: '0', role: 'application', 'aria-roledescription': 'timeline', 'aria-describedby': 'timeline-words' });
    this.tip = h('div', { class: 'tip', hidden: true });
    this.words = h('p', { class: 'visually-hidden', id: 'timeline-words' });
    this.span = h('span', { class: 'muted', id: 'span' });
    const button = (label, title, onclick) => h('button', { class: 'button small', type: 'button', title, 'aria-label': title, onclick }, label);
    this.element = h('div', { class: 'timeline-box' },
      h('div', { class: 'card-head' }, h('h2', { id: 'timeline-title' }, 'Timeline'), this.span, h('span', { class: 'grow' }),
        h('div', { class: 'buttons', role: 'group', 'aria-label': 'Zoom' },
          button('−', 'Zoom out', () => this.zoom(2)), button('+', 'Zoom in', () => this.zoom(0.5)),
          button('←', 'Earlier', () => this.move(-0.5)), button('→', 'Later', () => this.move(0.5)), button('All', 'Show all of it', () => this.reset()))),
      h('div', { class: 'plot' }, this.svg, this.tip), this.words,
      h('div', { class: 'legend' }, [['running', 'running'], ['completed', 'exit 0'], ['failed', 'failed'], ['trouble', 'quarantine or trouble'], ['gap', 'not seen']]
        .map(([name, label]) => h('span', { class: 'key' }, h('i', { class: `swatch ${name}` }), label))));
    this.data = null;
    this.view = null; // null: all of it, and it grows with time
    this.listen();
    this.observer = new ResizeObserver(() => this.draw());
    this.observer.observe(this.svg);
  }

  close() {
    this.observer.disconnect();
  }

  listen() {
    const { svg } = this;
    svg.addEventListener('keydown', (event) => {
      const keys = {
        '+': () => this.zoom(0.5), '=': () => this.zoom(0.5), '-': () => this.zoom(2), ArrowLeft: () => this.move(-0.25), ArrowRight: () => this.move(0.25), 0: () => this.reset(),
      };
      if (event.ctrlKey || event.metaKey || event.altKey || !(event.key in keys)) return;
      keys[event.key]();
      event.preventDefault();
    });
    svg.addEventListener('wheel', (event) => {
      // A plain wheel scrolls the page.
      if (!event.ctrlKey && !event.shiftKey && !event.metaKey) return;
      event.preventDefault();
      const amount = event.deltaY || event.deltaX;
      if (event.shiftKey) this.move(Math.sign(amount) * 0.15);
      else this.zoom(Math.exp(Math.max(-1, Math.min(1, amount / 200))), this.timeAt(event));
    }, { passive: false });
    svg.addEventListener('dblclick', (event) => this.zoom(0.4, this.timeAt(event)));
    const fingers = new Map();
    svg.addEventListener('pointerdown', (event) => {
      fingers.set(event.pointerId, event.clientX);
      this.grabbed = { ...this.window() };
      this.start = [...fingers.values()];
    });
    svg.addEventListener('pointermove', (event) => {
      if (!fingers.has(event.pointerId)) return this.point(event);
      fingers.set(event.pointerId, event.clientX);
      return this.drag([...fingers.values()], event);
    });
    for (const type of ['pointerup', 'pointercancel', 'pointerleave']) {
      svg.addEventListener(type, (event) => {
        fingers.delete(event.pointerId);
        this.grabbed = { ...this.window() };
        this.start = [...fingers.values()];
        if (type === 'pointerleave') this.tip.hidden = true;
      });
    }
  }

  /** One finger moves it, two zoom it. */
  drag(now, event) {
    const { from, to } = this.grabbed;
    const scale = (to - from) / this.width();
    if (now.length === 1) {
      const by = (this.start[0] - now[0]) * scale;
      if (Math.abs(this.start[0] - now[0]) < 3) return;
      if (event.pointerType === 'mouse') this.svg.setPointerCapture(event.pointerId);
      this.set(from + by, to + by);
    } else if (now.length === 2 && this.start.length === 2) {
      const factor = Math.abs(this.start[0] - this.start[1]) / Math.max(10, Math.abs(now[0] - now[1]));
      const middle = (from + to) / 2;
      this.set(middle - ((to - from) / 2) * factor, middle + ((to - from) / 2) * factor);
    }
  }

  width() {
    return Math.max(50, (this.svg.clientWidth || 600) - LEFT - 8);
  }

  /** What is shown. */
  window() {
    if (this.view) return this.view;
    const { from, to } = this.data ?? { from: Date.now() - 60_000, to: Date.now() };
    const margin = (to - from) * 0.02;
    return { from: from - margin, to: to + margin };
  }

  timeAt(event) {
    const { from, to } = this.window();
    const x = event.clientX - this.svg.getBoundingClientRect().left - LEFT;
    return from + (x / this.width()) * (to - from);
  }

  zoom(factor, around) {
    const { from, to } = this.window();
    const middle = around ?? (from + to) / 2;
    this.set(middle - (middle - from) * factor, middle + (to - middle) * factor);
  }

  move(part) {
    const { from, to } = this.window();
    this.set(from + (to - from) * part, to + (to - from) * part);
  }

  reset() {
    this.view = null;
    this.draw();
  }

  /** Shows this time, within bounds. */
  set(from, to) {
    const length = Math.max(SHORTEST, to - from);
    const middle = (from + to) / 2;
    const whole = { from: this.data.from - (this.data.to - this.data.from) * 0.02, to: this.data.to + (this.data.to - this.data.from) * 0.02 };
    if (length >= whole.to - whole.from) return this.reset();
    const start = Math.max(whole.from, Math.min(whole.to - length, middle - length / 2));
    this.view = { from: start, to: start + length };
    return this.draw();
  }

  update(data) {
    this.data = data;
    this.draw();
  }

  draw() {
    if (!this.data) return;
    const { from, to } = this.window();
    const width = this.width();
    const { lanes, troubles, gaps } = this.data;
    const rows = [...lanes, ...(troubles.length ? [{ name: 'troubles', kind: 'trouble', bars: troubles }] : [])];
    const height = TOP + Math.max(1, rows.length) * LANE + 6;
    const x = (at) => LEFT + ((at - from) / (to - from)) * width;
    const clip = (at) => Math.max(LEFT, Math.min(LEFT + width, x(at)));
    setAttribute(this.svg, 'viewBox', `0 0 ${LEFT + width + 8} ${height}`);
    setAttribute(this.svg, 'height', height);
    const { ticks, step } = timeTicks(from, to, ((to - from) * 80) / width);
    const visible = (bar) => bar.from <= to && (bar.to ?? this.data.to) >= from;
    this.shapes = [];
    const bars = rows.map((lane, index) => lane.bars.filter(visible).slice(-MOST_BARS).map((bar) => {
      const [x1, x2] = [clip(bar.from), clip(bar.to ?? this.data.to)];
      const y = TOP + index * LANE + 6;
      const box = { x: x1, y, width: Math.max(lane.kind === 'trouble' ? 4 : 2, x2 - x1), height: LANE - 14, rx: 3 };
      this.shapes.push({ ...box, bar, lane });
      return this.bar(lane, bar, box);
    }));
    show(this.svg,
      s('defs', {}, s('pattern', { id: 'hatch', width: 6, height: 6, patternUnits: 'userSpaceOnUse', patternTransform: 'rotate(45)' }, s('line', { class: 'hatch', x1: 0, y1: 0, x2: 0, y2: 6 }))),
      rows.map((lane, index) => [
        index % 2 ? null : s('rect', { class: 'stripe', x: LEFT, y: TOP + index * LANE, width, height: LANE }),
        s('text', { class: 'lane-name', x: LEFT - 10, y: TOP + index * LANE + LANE / 2 + 4, 'text-anchor': 'end' }, lane.name.length > 13 ? `${lane.name.slice(0, 12)}…` : lane.name, s('title', {}, lane.name)),
      ]),
      ticks.map((at) => [
        s('line', { class: 'rule', x1: x(at), x2: x(at), y1: TOP - 4, y2: height - 4 }),
        s('text', { class: 'tick', x: x(at), y: 14, 'text-anchor': 'middle' }, timeLabel(at, step)),
      ]),
      gaps.filter(visible).map((gap) => s('rect', { class: 'unseen', x: clip(gap.from), y: TOP, width: Math.max(2, clip(gap.to) - clip(gap.from)), height: height - TOP - 4, fill: 'url(#hatch)' })),
      bars);
    this.describe(from, to);
  }

  bar(lane, bar, box) {
    if (lane.kind === 'trouble') return s('rect', { class: `life trouble${bar.to ? '' : ' open'}`, ...box });
    const label = bar.kind === 'container' && (bar.attempt ? `#${bar.attempt}` : '');
    const text = bar.tone === 'failed' ? `${label ? `${label} ` : ''}${bar.reason ?? `exit ${bar.exit}`}` : label;
    const fits = text && box.width > text.length * 7 + 10;
    return s('g', {},
      s('rect', { class: `life ${bar.tone} ${lane.kind}${bar.fromKnown ? '' : ' open-left'}`, ...box }),
      // An end with an error has a mark of its own: colour is not the only sign.
      bar.tone === 'failed' ? s('path', { class: 'fail-mark', d: `M${box.x + box.width - 1} ${box.y - 3}v${box.height + 6}` }) : null,
      fits ? s('text', { class: 'life-text', x: box.x + 6, y: box.y + box.height / 2 + 4 }, text) : null);
  }

  describe(from, to) {
    setText(this.span, `${moment(from)} – ${clock(to)} (${duration((to - from) / 1000)})`);
    const containers = this.data.lanes.filter((lane) => lane.kind === 'container');
    const lives = containers.reduce((n, lane) => n + lane.bars.length, 0);
    const failed = containers.reduce((n, lane) => n + lane.bars.filter((bar) => bar.tone === 'failed').length, 0);
    setText(this.words, `${containers.length} containers, ${lives} lives, ${failed} ended with an error, ${this.data.troubles.length} troubles, ${this.data.gaps.length} times in which nothing was seen. `
      + 'Plus and minus zoom, the arrow keys move, 0 shows all of it. The table of lives below has the same.');
  }

  point(event) {
    const box = this.svg.getBoundingClientRect();
    const [px, py] = [event.clientX - box.left, event.clientY - box.top];
    const hit = this.shapes?.findLast((shape) => px >= shape.x - 2 && px <= shape.x + shape.width + 2 && py >= shape.y - 4 && py <= shape.y + shape.height + 4);
    const gap = !hit && this.data?.gaps.find((one) => this.timeAt(event) >= one.from && this.timeAt(event) <= one.to && px > LEFT);
    this.tip.hidden = !hit && !gap;
    if (this.tip.hidden) return;
    show(this.tip, (hit ? this.lines(hit) : [`not seen: ${gap.why}`, `${moment(gap.from)} – ${moment(gap.to)} (${duration((gap.to - gap.from) / 1000)})`])
      .filter(Boolean).map((line, index) => h(index ? 'div' : 'strong', {}, line)));
    const left = Math.min(px + 14, box.width - this.tip.offsetWidth - 4);
    this.tip.style.transform = `translate(${Math.max(0, left)}px, ${py + 16}px)`;
  }

  lines({ bar, lane }) {
    const until = bar.to ?? this.data.to;
    const time = `${bar.fromKnown === false ? 'before ' : ''}${moment(bar.from)} – ${bar.to ? moment(bar.to) : 'now'}${bar.toKnown === false ? ' or later' : ''} (${duration((until - bar.from) / 1000)})`;
    if (lane.kind === 'trouble') return [troubleWord(bar.trouble), time, shortIds(bar.text)];
    const name = lane.kind === 'sandbox' ? 'sandbox' : `${lane.name}${bar.attempt ? ` #${bar.attempt}` : ''}`;
    return [name, lane.kind === 'sandbox' ? bar.reason : ending(bar), time];
  }
}

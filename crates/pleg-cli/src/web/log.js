// The live event stream, with pause. While it is paused nothing is lost: what came meanwhile is shown when it goes on.

import { announce, h, setAttribute, setText, show } from './dom.js';
import { clock, containerName, duration, eventDetail, eventTone, moment, number, podPath, troubleWord } from './format.js';

const ROWS = 200; // in the document
const KINDS = { all: null, deaths: ['ContainerDied'], starts: ['ContainerStarted'], troubles: ['TroubleStarted', 'TroubleEnded', 'PlegHealthy', 'PlegDegraded', 'PlegNotHealthy', 'Gap'] };

/** One event as a line. */
export function eventRow(event, ofPod = false) {
  const pod = event.pod;
  const about = containerName(event.subject);
  return h('li', { class: 'event', data: { tone: eventTone(event), type: event.type } },
    h('time', { datetime: event.time ?? '', title: event.time ?? '' }, ofPod ? moment(event.at) : clock(event.at)),
    h('span', { class: 'type' }, event.type),
    h('span', { class: 'about' },
      pod && !ofPod ? h('a', { href: podPath(pod), 'data-link': true }, `${pod.namespace}/${pod.name}`) : null,
      about ? h('span', { class: 'container' }, about) : null),
    h('span', { class: 'detail' }, eventDetail(event), event.lag === undefined ? null : h('span', { class: 'lag', title: 'lag: from the change to its event' }, `+${duration(event.lag)}`)));
}

/** The panel of the node's page. */
export class EventLog {
  constructor(store) {
    this.store = store;
    this.paused = false;
    this.waiting = 0;
    this.kind = 'all';
    this.list = h('ol', { class: 'events', id: 'events', role: 'log', 'aria-live': 'off', 'aria-label': 'Events, the newest first', tabindex: '0' });
    this.pauseLabel = h('span', {}, 'Pause');
    this.pause = h('button', { class: 'button small', id: 'pause', type: 'button', 'aria-pressed': 'false', title: 'Pause (p)', onclick: () => this.toggle() }, this.pauseLabel);
    this.select = h('select', { 'aria-label': 'Which events', onchange: () => { this.kind = this.select.value; this.fill(); } },
      [['all', 'All events'], ['deaths', 'Deaths'], ['starts', 'Starts'], ['troubles', 'Health and troubles']].map(([value, label]) => h('option', { value }, label)));
    this.rate = h('span', { class: 'muted' });
    this.element = h('section', { class: 'card log', 'aria-labelledby': 'events-title' },
      h('div', { class: 'card-head' }, h('h2', { id: 'events-title' }, 'Events'), this.rate, h('span', { class: 'grow' }), this.select, this.pause),
      this.list);
    this.onitem = ({ detail }) => this.add(detail);
    this.onbacklog = () => { if (!this.paused) this.fill(); };
    store.addEventListener('item', this.onitem);
    store.addEventListener('backlog', this.onbacklog);
    this.timer = setInterval(() => this.fillRate(), 1000);
    this.fill();
  }

  close() {
    this.store.removeEventListener('item', this.onitem);
    this.store.removeEventListener('backlog', this.onbacklog);
    clearInterval(this.timer);
    cancelAnimationFrame(this.frame);
  }

  wants(event) {
    return !event.initial && event.type !== 'PodSync' && (!KINDS[this.kind] || KINDS[this.kind].includes(event.type));
  }

  toggle() {
    this.paused = !this.paused;
    setAttribute(this.pause, 'aria-pressed', this.paused);
    this.waiting = 0;
    setText(this.pauseLabel, this.paused ? 'Go on' : 'Pause');
    announce(this.paused ? 'Events are paused' : 'Events go on');
    if (!this.paused) this.fill();
  }

  add(event) {
    if (event.type === 'TroubleStarted' || event.type === 'PlegNotHealthy') {
      announce(`${event.type}: ${event.trouble ? troubleWord(event.trouble) : ''} ${event.pod ? `${event.pod.namespace}/${event.pod.name}` : ''}`);
    }
    if (!this.wants(event)) return;
    if (this.paused) {
      this.waiting += 1;
      setText(this.pauseLabel, `Go on (${number(this.waiting)} new)`);
      return;
    }
    // A burst is one change of the document.
    this.burst ??= [];
    this.burst.push(event);
    if (this.burst.length > ROWS) this.burst.shift();
    this.frame ??= requestAnimationFrame(() => this.flush());
  }

  flush() {
    this.frame = null;
    const rows = (this.burst ?? []).reverse().map((event) => eventRow(event));
    this.burst = null;
    if (!rows.length || this.paused) return;
    this.empty?.remove();
    const at = this.list.scrollTop;
    this.list.prepend(...rows);
    while (this.list.childElementCount > ROWS) this.list.lastElementChild.remove();
    // Who has scrolled down reads on where they are.
    if (at > 0) this.list.scrollTop = at + rows.length * (rows[0].offsetHeight || 0);
  }

  fill() {
    this.burst = null;
    const rows = [];
    const { events } = this.store;
    for (let index = events.length - 1; index >= 0 && rows.length < ROWS; index -= 1) if (this.wants(events[index])) rows.push(eventRow(events[index]));
    this.empty = h('li', { class: 'empty' }, 'No event yet. New ones appear here as they happen.');
    show(this.list, rows.length ? rows : this.empty);
    this.fillRate();
  }

  fillRate() {
    const since = Date.now() - 60_000;
    let n = 0;
    for (let index = this.store.events.length - 1; index >= 0 && this.store.events[index].at > since; index -= 1) n += this.store.events[index].initial ? 0 : 1;
    setText(this.rate, `${number(n)} a minute`);
  }
}

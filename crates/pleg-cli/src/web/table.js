// The table of pods. Only the rows that can be seen exist: five thousand pods cost as much as fifty.

import { h, setAttribute, setText, show } from './dom.js';
import { age, clock, count, number, podPath, podState, podTone } from './format.js';
import * as query from './query.js';

const ROW = 36; // px, as in style.css
const SPARE = 6; // rows beyond the edge

const HEADS = [
  ['name', 'Pod'],
  ['state', 'State'],
  ['ready', 'Ready'],
  ['restarts', 'Restarts'],
  ['changed', 'Last change'],
  ['age', 'Age'],
  ['ip', 'IP'],
];

/** A virtual table in `element`, of the pods of `store`; `open(path)` shows a pod. */
export class PodTable {
  constructor(store, open) {
    this.store = store;
    this.open = open;
    this.choice = query.read(location.search);
    this.rows = [];
    this.pool = [];
    this.current = 0;
    this.element = this.build();
    this.store.addEventListener('pods', this.onpods = () => this.refresh());
    this.ages = setInterval(() => this.paint(true), 1000);
    this.refresh();
  }

  close() {
    this.store.removeEventListener('pods', this.onpods);
    clearInterval(this.ages);
    this.observer.disconnect();
  }

  build() {
    this.search = h('input', {
      id: 'filter', type: 'search', placeholder: 'Filter by name, state, IP or UID', 'aria-label': 'Filter the pods', autocomplete: 'off', spellcheck: 'false',
      oninput: () => this.choose({ q: this.search.value }),
      onkeydown: (event) => {
        if (event.key === 'ArrowDown') { this.grid.focus(); event.preventDefault(); }
        if (event.key === 'Escape' && this.search.value) { this.search.value = ''; this.choose({ q: '' }); event.preventDefault(); }
      },
    });
    this.search.value = this.choice.q;
    this.namespaces = h('select', { id: 'namespace', 'aria-label': 'Namespace', onchange: () => this.choose({ ns: this.namespaces.value }) });
    this.chips = h('div', { class: 'chips', role: 'group', 'aria-label': 'Which pods' });
    this.number = h('span', { class: 'muted', id: 'count', role: 'status' });
    this.heads = HEADS.map(([name, label]) => {
      const button = h('button', { type: 'button', tabindex: '-1', onclick: () => this.sortBy(name) }, label);
      return h('div', { role: 'columnheader', class: `cell ${name}`, data: { column: name } }, button);
    });
    this.body = h('div', { class: 'rows', role: 'rowgroup' });
    this.spacer = h('div', { class: 'spacer' }, this.body);
    this.empty = h('p', { class: 'empty', hidden: true });
    this.scroller = h('div', { class: 'scroller', onscroll: () => this.paint() }, this.spacer, this.empty);
    this.grid = h('div', {
      class: 'grid', id: 'pods', role: 'grid', tabindex: '0', 'aria-label': 'Pods', 'aria-colcount': HEADS.length,
      onkeydown: (event) => this.key(event),
    }, h('div', { role: 'rowgroup' }, h('div', { class: 'row head', role: 'row', 'aria-rowindex': 1 }, this.heads)), this.scroller);
    this.observer = new ResizeObserver(() => this.paint());
    this.observer.observe(this.scroller);
    return h('section', { class: 'card pods', 'aria-labelledby': 'pods-title' },
      h('div', { class: 'card-head' }, h('h2', { id: 'pods-title' }, 'Pods'), this.number, h('span', { class: 'grow' }), this.chips),
      h('div', { class: 'filters' }, this.search, this.namespaces),
      this.grid);
  }

  choose(change) {
    Object.assign(this.choice, change);
    query.replace(change);
    this.scroller.scrollTop = 0;
    this.current = 0;
    this.refresh();
  }

  /** A second click turns the order round. */
  sortBy(name) {
    const first = query.COLUMNS[name].first < 0 ? `-${name}` : name;
    const other = first.startsWith('-') ? name : `-${name}`;
    this.choose({ sort: this.choice.sort === first ? other : first });
  }

  refresh() {
    const all = [...this.store.pods.values()];
    const focused = this.rows[this.current]?.pod.uid;
    this.rows = query.choose(all, this.choice);
    const place = focused ? this.rows.findIndex((row) => row.pod.uid === focused) : -1;
    this.current = place >= 0 ? place : Math.min(this.current, Math.max(0, this.rows.length - 1));
    setText(this.number, this.rows.length === all.length ? count(all.length, 'pod') : `${number(this.rows.length)} of ${count(all.length, 'pod')}`);
    this.fillNamespaces(all);
    this.fillChips(all);
    for (const head of this.heads) {
      const [sorted, down] = [this.choice.sort.replace(/^-/, '') === head.dataset.column, this.choice.sort.startsWith('-')];
      setAttribute(head, 'aria-sort', sorted ? (down ? 'descending' : 'ascending') : 'none');
    }
    setAttribute(this.grid, 'aria-rowcount', this.rows.length + 1);
    this.spacer.style.height = `${this.rows.length * ROW}px`;
    this.empty.hidden = this.rows.length > 0;
    if (!this.rows.length) {
      setText(this.empty, !this.store.loaded ? 'Reading the pods…' : all.length ? 'No pod matches the filter.' : 'The runtime has no pods.');
    }
    this.paint(true);
  }

  fillNamespaces(all) {
    const names = [...new Set(all.map((row) => row.pod.namespace))].sort();
    if (this.choice.ns && !names.includes(this.choice.ns)) names.push(this.choice.ns);
    const key = names.join('\n');
    if (key === this.namespaceKey) return;
    this.namespaceKey = key;
    show(this.namespaces, h('option', { value: '' }, 'All namespaces'), names.map((name) => h('option', { value: name }, name)));
    this.namespaces.value = this.choice.ns;
  }

  fillChips(all) {
    const labels = { all: 'All', troubled: 'Troubled', 'not-ready': 'Not ready', restarted: 'Restarted' };
    const chips = query.SHOWS.map((name) => {
      const found = name === 'all' ? all.length : all.reduce((n, row) => n + query.shows(row, name), 0);
      return [name, labels[name], found];
    });
    const key = JSON.stringify([chips, this.choice.show]);
    if (key === this.chipKey) return;
    this.chipKey = key;
    const focused = document.activeElement?.dataset?.show;
    show(this.chips, chips.map(([name, label, found]) => h('button', {
      class: 'chip', type: 'button', 'aria-pressed': String(this.choice.show === name), data: { show: name },
      onclick: () => this.choose({ show: name }),
    }, label, h('span', { class: 'n' }, number(found)))));
    if (focused) this.chips.querySelector(`[data-show="${focused}"]`)?.focus();
  }

  /** Puts the rows that can be seen in place. `all`: also those that are there already may have changed. */
  paint(all = false) {
    const top = this.scroller.scrollTop;
    const height = this.scroller.clientHeight;
    const first = Math.max(0, Math.floor(top / ROW) - SPARE);
    const last = Math.min(this.rows.length, Math.ceil((top + height) / ROW) + SPARE);
    if (!all && first === this.first && last === this.last) return;
    [this.first, this.last] = [first, last];
    while (this.pool.length < last - first) this.pool.push(this.newRow());
    while (this.pool.length > last - first + 2 * SPARE) this.pool.pop().element.remove();
    const now = Date.now();
    this.pool.forEach((cells, n) => {
      const row = this.rows[first + n];
      const used = first + n < last;
      cells.element.hidden = !used;
      if (used) this.fill(cells, row, first + n, now);
    });
    this.body.style.transform = `translateY(${first * ROW}px)`;
    setAttribute(this.grid, 'aria-activedescendant', this.rows.length && this.current >= first && this.current < last ? `row-${this.current}` : null);
  }

  newRow() {
    const cell = (name) => h('div', { role: 'gridcell', class: `cell ${name}` });
    const cells = Object.fromEntries(HEADS.map(([name]) => [name, cell(name)]));
    cells.link = h('a', { tabindex: '-1', 'data-link': true });
    cells.namespace = h('span', { class: 'ns' });
    cells.podName = h('span', { class: 'pod-name' });
    cells.link.append(cells.namespace, cells.podName);
    cells.name.append(cells.link);
    cells.badge = h('span', { class: 'badge' });
    cells.state.append(cells.badge);
    cells.element = h('div', { class: 'row', role: 'row', onclick: (event) => this.click(event, cells) }, HEADS.map(([name]) => cells[name]));
    this.body.append(cells.element);
    return cells;
  }

  fill(cells, row, index, now) {
    cells.path = podPath(row.pod);
    cells.index = index;
    setAttribute(cells.element, 'id', `row-${index}`);
    setAttribute(cells.element, 'aria-rowindex', index + 2);
    setAttribute(cells.element, 'aria-selected', index === this.current);
    setAttribute(cells.link, 'href', cells.path);
    setText(cells.namespace, `${row.pod.namespace}/`);
    setText(cells.podName, row.pod.name);
    setAttribute(cells.link, 'title', `${row.pod.namespace}/${row.pod.name}`);
    setText(cells.badge, podState(row));
    setAttribute(cells.badge, 'data-tone', podTone(row));
    setText(cells.ready, `${row.running}/${row.total}`);
    setText(cells.restarts, row.restarts ? number(row.restarts) : '0');
    setAttribute(cells.restarts, 'data-zero', row.restarts ? null : '');
    const changed = Number.isFinite(row.changed) ? `${age((now - row.changed) / 1000)} ago` : '–';
    setText(cells.changed, changed);
    setAttribute(cells.changed, 'title', clock(row.changed));
    setText(cells.age, age((now - row.created) / 1000));
    setText(cells.ip, row.ip || '–');
  }

  click(event, cells) {
    this.current = cells.index;
    if (event.target.closest('a')) return; // Links are links: the router, or a new tab.
    this.open(cells.path);
  }

  key(event) {
    if (event.altKey || event.ctrlKey || event.metaKey) return;
    const page = Math.max(1, Math.floor(this.scroller.clientHeight / ROW) - 1);
    const last = this.rows.length - 1;
    const places = {
      ArrowDown: this.current + 1, ArrowUp: this.current - 1, PageDown: this.current + page, PageUp: this.current - page, Home: 0, End: last,
    };
    if (event.key === 'Enter' && this.rows[this.current]) {
      this.open(podPath(this.rows[this.current].pod));
    } else if (event.key in places) {
      this.current = Math.max(0, Math.min(last, places[event.key]));
      this.reveal();
      this.paint(true);
    } else {
      return;
    }
    event.preventDefault();
  }

  reveal() {
    const top = this.current * ROW;
    const { scrollTop, clientHeight } = this.scroller;
    if (top < scrollTop) this.scroller.scrollTop = top;
    else if (top + ROW > scrollTop + clientHeight) this.scroller.scrollTop = top + ROW - clientHeight;
  }
}

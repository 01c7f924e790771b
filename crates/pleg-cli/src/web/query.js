// What is chosen lives in the address: filters, sorting, ranges. Pure, except for `replace`.

import { podState, podTone } from './format.js';

/** Field, and its value if the address does not have it. */
export const DEFAULTS = { q: '', ns: '', show: 'all', sort: 'name', range: '15m' };

export const SHOWS = ['all', 'troubled', 'not-ready', 'restarted'];

/** The choices in an address. Unknown fields and values are left out. */
export function read(search) {
  const params = new URLSearchParams(search);
  const choice = {};
  for (const [name, value] of Object.entries(DEFAULTS)) choice[name] = (params.get(name) ?? value).slice(0, 256);
  if (!SHOWS.includes(choice.show)) choice.show = DEFAULTS.show;
  if (!Object.hasOwn(COLUMNS, choice.sort.replace(/^-/, ''))) choice.sort = DEFAULTS.sort;
  return choice;
}

/** The address of choices: what is as usual is left out. */
export function write(choice) {
  const params = new URLSearchParams();
  for (const [name, value] of Object.entries(DEFAULTS)) {
    if (choice[name] !== undefined && choice[name] !== value) params.set(name, choice[name]);
  }
  const text = params.toString();
  return text ? `?${text}` : '';
}

/** Puts the choices into the address of this page. */
export function replace(choice) {
  history.replaceState(history.state, '', location.pathname + write({ ...read(location.search), ...choice }) + location.hash);
}

/** How each column compares; the first click on the numbers begins with the largest. */
export const COLUMNS = {
  name: { of: (row) => row.order, first: 1 },
  state: { of: (row) => podState(row).toLowerCase(), first: 1 },
  ready: { of: (row) => (row.total ? row.running / row.total : -1), first: 1 },
  restarts: { of: (row) => row.restarts, first: -1 },
  ip: { of: (row) => row.ip, first: 1 },
  changed: { of: (row) => -(Number.isFinite(row.changed) ? row.changed : 0), first: 1 },
  age: { of: (row) => -(Number.isFinite(row.created) ? row.created : 0), first: 1 },
};

/** Whether a pod is shown by one of the choices of `show`. */
export function shows(row, show) {
  switch (show) {
    case 'troubled': return Boolean(row.trouble || row.quarantined || row.status_stale) || podTone(row) === 'bad';
    case 'not-ready': return row.running < row.total && row.state !== 'Completed';
    case 'restarted': return row.restarts > 0;
    default: return true;
  }
}

/** The rows that are chosen, sorted. Every word of the filter must be in the name, the state or the address of a pod. */
export function choose(rows, choice) {
  const words = choice.q.toLowerCase().split(/\s+/).filter(Boolean);
  const matches = (row) => {
    if (choice.ns && row.pod.namespace !== choice.ns) return false;
    if (!shows(row, choice.show)) return false;
    if (!words.length) return true;
    const text = `${row.key} ${podState(row).toLowerCase()} ${row.ips.join(' ')} ${row.pod.uid}`;
    return words.every((word) => text.includes(word));
  };
  const chosen = [];
  for (const row of rows) if (matches(row)) chosen.push(row);
  const descending = choice.sort.startsWith('-');
  const { of } = COLUMNS[choice.sort.replace(/^-/, '')];
  const keys = new Map(chosen.map((row) => [row, of(row)]));
  const compare = (a, b) => {
    const [x, y] = [keys.get(a), keys.get(b)];
    if (x < y) return descending ? 1 : -1;
    if (x > y) return descending ? -1 : 1;
    return a.order < b.order ? -1 : a.order > b.order ? 1 : 0;
  };
  return chosen.sort(compare);
}

// Starts the page: the store, the bar on top, and which page the address is of.

import { announce, observeLongTasks, setAttribute, setText } from './dom.js';
import { duration } from './format.js';
import { nodePage, nothingPage } from './node.js';
import { podPage } from './pod.js';
import { Store } from './store.js';

const store = new Store();
const main = document.getElementById('main');
let page = null;
const scrolls = new Map(); // of pages that one may come back to

/** The page of an address. */
function pageOf(path) {
  if (path === '/') return nodePage(store, open);
  const parts = path.split('/');
  if (parts.length === 4 && parts[1] === 'pods') {
    try {
      return podPage(store, { namespace: decodeURIComponent(parts[2]), name: decodeURIComponent(parts[3]) });
    } catch {
      return nothingPage();
    }
  }
  return nothingPage();
}

function render(focus) {
  page?.close();
  page = pageOf(location.pathname);
  main.replaceChildren(page.element);
  main.dataset.page = location.pathname === '/' ? 'node' : 'pod';
  title();
  if (focus) main.focus({ preventScroll: true });
  window.scrollTo(0, scrolls.get(location.pathname) ?? 0);
}

/** Goes to another page, without leaving this one. */
function open(path) {
  scrolls.set(location.pathname, window.scrollY);
  const here = location.pathname + location.search;
  if (path === here) return;
  // Back to the node means back to what was chosen there.
  if (location.pathname === '/') sessionStorage.setItem('node', location.search);
  const target = path === '/' ? `/${sessionStorage.getItem('node') ?? ''}` : path;
  history.pushState(null, '', target);
  if (path !== '/') scrolls.delete(path);
  render(true);
}

document.addEventListener('click', (event) => {
  const link = event.target.closest?.('a[data-link]');
  if (!link || event.defaultPrevented || event.button !== 0 || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
  event.preventDefault();
  open(link.getAttribute('href'));
});
window.addEventListener('popstate', () => render(true));

const help = document.getElementById('help');
document.getElementById('keys').addEventListener('click', () => help.showModal());
document.addEventListener('keydown', (event) => {
  if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey || help.open) return;
  if (event.target.closest?.('input, select, textarea')) return;
  const keys = { '?': () => help.showModal(), n: () => open('/'), ...page?.keys };
  if (!Object.hasOwn(keys, event.key)) return;
  event.preventDefault();
  keys[event.key]();
});

const THEMES = ['system', 'light', 'dark'];
const themeButton = document.getElementById('theme');
function theme(name) {
  if (name === 'system') delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = name;
  setAttribute(themeButton, 'aria-label', `Colours: ${name === 'system' ? 'as the system has them' : name}`);
  try {
    localStorage.setItem('theme', name);
  } catch {
    // Without storage it is chosen for this page only.
  }
}
function storedTheme() {
  try {
    return localStorage.getItem('theme');
  } catch {
    return null;
  }
}
themeButton.addEventListener('click', () => {
  const now = document.documentElement.dataset.theme ?? 'system';
  const next = THEMES[(THEMES.indexOf(now) + 1) % THEMES.length];
  theme(next);
  announce(`Colours: ${next}`);
});
if (THEMES.includes(storedTheme())) theme(storedTheme());

function title() {
  const text = page?.title() ?? 'pleg';
  document.title = store.connection.state === 'lost' ? `Not connected · ${text}` : text;
}

const banner = document.getElementById('banner');
const WORDS = { connecting: 'Connecting', live: 'Live', lost: 'Reconnecting', asleep: 'Asleep' };
function connection() {
  const { state, why, since, before } = store.connection;
  const pill = document.getElementById('connection');
  setAttribute(pill, 'data-state', state);
  setText(document.getElementById('connection-text'), WORDS[state]);
  setAttribute(pill, 'title', why || null);
  banner.hidden = state !== 'lost';
  if (state === 'lost') {
    const gone = (Date.now() - since) / 1000;
    setText(banner, `The daemon does not answer${gone >= 2 ? ` for ${duration(Math.floor(gone))}` : ''}: what is shown may be old. Reconnecting…`);
  }
  title();
  if (state === 'lost' && connection.told !== 'lost') announce('The daemon does not answer. Reconnecting.');
  if (state === 'live' && connection.told === 'lost') announce(`Connected again, after ${duration(Math.max(1, Math.round((Date.now() - (before?.since ?? Date.now())) / 1000)))}`);
  connection.told = state;
}
store.addEventListener('connection', connection);
store.addEventListener('health', title);
setInterval(connection, 1000);
store.addEventListener('about', () => setText(document.getElementById('node'), store.about.endpoint ?? ''));

// For tests, and for whoever debugs the page.
window.pleg = { store, longTasks: observeLongTasks() };

store.start();
render(false);

// Elements from data. Text is only ever set as text: whatever a pod is named, it never becomes markup.

const SVG = 'http://www.w3.org/2000/svg';

function fill(element, props, children) {
  for (const [name, value] of Object.entries(props ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith('on')) element.addEventListener(name.slice(2), value);
    else if (name === 'style') Object.assign(element.style, value);
    else if (name === 'data') Object.assign(element.dataset, value);
    else element.setAttribute(name, value === true ? '' : String(value));
  }
  append(element, children);
  return element;
}

/** Appends elements and texts; leaves out what is null, undefined or false. */
export function append(element, children) {
  for (const child of children.flat(Infinity)) {
    if (child === undefined || child === null || child === false) continue;
    element.append(child instanceof Node ? child : String(child));
  }
}

/** An HTML element. */
export function h(tag, props, ...children) {
  return fill(document.createElement(tag), props, children);
}

/** An SVG element. */
export function s(tag, props, ...children) {
  return fill(document.createElementNS(SVG, tag), props, children);
}

/** Replaces the children of an element. */
export function show(element, ...children) {
  element.replaceChildren();
  append(element, children);
  return element;
}

/** Sets the text of an element if it differs, so that nothing is laid out for nothing. */
export function setText(element, text) {
  const value = String(text);
  if (element.textContent !== value) element.textContent = value;
}

/** Sets an attribute if it differs; null removes it. */
export function setAttribute(element, name, value) {
  if (value === null || value === undefined) element.removeAttribute(name);
  else if (element.getAttribute(name) !== String(value)) element.setAttribute(name, String(value));
}

/** Tells a screen reader, once. */
export function announce(text) {
  const region = document.getElementById('announce');
  if (region && region.textContent !== text) region.textContent = text;
}

/** Copies text; also where the clipboard is refused because the page is not from this machine. */
export async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const area = h('textarea', { 'aria-hidden': 'true', class: 'visually-hidden' });
    area.value = text;
    document.body.append(area);
    area.select();
    const done = document.execCommand('copy');
    area.remove();
    return done;
  }
}

/** A command with a button that copies it. */
export function command(text) {
  const label = h('span', {}, 'Copy');
  const button = h('button', {
    class: 'copy',
    type: 'button',
    'aria-label': `Copy: ${text}`,
    onclick: async () => {
      const done = await copy(text);
      label.textContent = done ? 'Copied' : 'Press Ctrl-C';
      announce(done ? 'Copied' : 'Not copied');
      setTimeout(() => { label.textContent = 'Copy'; }, 1500);
    },
  }, label);
  return h('span', { class: 'command' }, h('code', {}, text), button);
}

/** Sentences in which `commands` stand between backquotes, as health reports have them: one line for each. */
export function sentences(text) {
  const lines = [[]];
  String(text ?? '').split('`').forEach((part, index) => {
    if (index % 2) {
      lines.at(-1).push(command(part));
      return;
    }
    const [first, ...rest] = part.split(/\.\s+(?=[A-Z])/);
    // What stands between two commands of a line are commas; the dot at its end is seen as its end.
    if (first.replace(/^[.,;\s]+$/, '')) lines.at(-1).push(first);
    for (const sentence of rest) lines.push([sentence]);
  });
  return lines.filter((line) => line.length).map((line) => h('div', { class: 'step' }, line));
}

/** The longest piece of work since the last call, for tests: tasks over 50 ms as the browser counts them. */
export function observeLongTasks() {
  const tasks = [];
  try {
    new PerformanceObserver((list) => {
      for (const entry of list.getEntries()) tasks.push(Math.round(entry.duration));
      if (tasks.length > 100) tasks.shift();
    }).observe({ type: 'longtask', buffered: true });
  } catch {
    // Not every browser can tell.
  }
  return tasks;
}

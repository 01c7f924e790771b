// The health of the node: level, causes, what each usually means, and the next command to copy.

import { announce, command, h, sentences, setAttribute, setText, show } from './dom.js';
import { count, duration, podPath, shortIds, troubleWord } from './format.js';

const TONES = { Healthy: 'good', Degraded: 'warn', Unhealthy: 'bad' };
const ICONS = { good: '✓', warn: '!', bad: '✕', idle: '…' };

/** One cause: what is seen, what it usually means, what to type next. */
export function causeItem(cause, link = true) {
  const pod = cause.pod?.split('/');
  const where = link && pod?.length === 2
    ? h('a', { href: podPath({ namespace: pod[0], name: pod[1] }), 'data-link': true, class: 'where' }, cause.pod)
    : null;
  return h('li', { class: 'cause' },
    h('div', { class: 'cause-head' },
      h('span', { class: 'badge', data: { tone: 'warn' } }, troubleWord(cause.trouble)), where,
      cause.age_seconds === undefined ? null : h('span', { class: 'muted' }, `for ${duration(cause.age_seconds)}`)),
    h('p', { class: 'seen', title: cause.text }, shortIds(cause.text)),
    h('div', { class: 'means' }, h('span', { class: 'label' }, 'Usually'), h('p', {}, cause.means)),
    cause.next ? h('div', { class: 'next' }, h('span', { class: 'label' }, 'Next'), h('div', { class: 'steps' }, sentences(cause.next))) : null);
}

/** The same cause, whatever its age. */
const keyOf = (cause) => [cause.trouble, cause.pod, cause.id, cause.sandbox, cause.stage].join('|');

/** The panel on top of the node's page. */
export class HealthPanel {
  constructor(store) {
    this.store = store;
    this.icon = h('span', { class: 'level-icon', 'aria-hidden': 'true' }, ICONS.idle);
    this.level = h('strong', { class: 'level', id: 'level' }, 'Reading the health…');
    this.headline = h('span', { class: 'headline', id: 'headline' });
    this.facts = h('dl', { class: 'facts' });
    this.causes = h('ul', { class: 'causes', id: 'causes' });
    this.more = h('p', { class: 'muted', hidden: true });
    this.warnings = h('details', { class: 'warnings', hidden: true });
    this.element = h('section', { class: 'card health', data: { tone: 'idle' }, 'aria-label': 'Health' },
      h('div', { class: 'verdict' }, this.icon, h('div', {}, h('h1', {}, this.level), this.headline)),
      this.facts, this.causes, this.more, this.warnings);
    this.on = () => this.update();
    for (const type of ['health', 'about', 'pods', 'connection']) store.addEventListener(type, this.on);
    this.timer = setInterval(() => this.fillFacts(), 1000);
    this.update();
  }

  close() {
    for (const type of ['health', 'about', 'pods', 'connection']) this.store.removeEventListener(type, this.on);
    clearInterval(this.timer);
  }

  update() {
    const health = this.store.health;
    if (!health) return;
    const tone = TONES[health.level] ?? 'warn';
    setAttribute(this.element, 'data-tone', tone);
    setAttribute(this.element, 'data-old', this.store.connection.state === 'lost' ? '' : null);
    setText(this.icon, ICONS[tone]);
    setText(this.level, health.level);
    setText(this.headline, health.headline);
    if (this.told && this.told !== health.level) announce(`${health.level}: ${health.headline}`);
    this.told = health.level;
    this.fillFacts();
    this.fillCauses(health);
  }

  /** A cause that stays keeps its element, so that a selection or a focus in it stays too; its age and words are renewed. */
  fillCauses(health) {
    const focused = this.causes.contains(document.activeElement) || !document.getSelection()?.isCollapsed && this.causes.contains(document.getSelection().anchorNode);
    const key = health.causes.map(keyOf).join('\n');
    if (!(focused && key === this.causeKey)) show(this.causes, health.causes.map((cause) => causeItem(cause)));
    this.causeKey = key;
    this.more.hidden = !health.more_causes;
    setText(this.more, `and ${count(health.more_causes ?? 0, 'more cause')}: pleg health -o json lists them all`);
    const warnings = health.warnings ?? [];
    this.warnings.hidden = !warnings.length;
    const words = JSON.stringify(warnings);
    if (words === this.warningKey) return;
    this.warningKey = words;
    show(this.warnings, h('summary', {}, `${count(warnings.length, 'warning')} for a stock kubelet on this node`),
      h('ul', { class: 'causes' }, warnings.map((warning) => causeItem(warning, false))));
  }

  fillFacts() {
    const { health, about, pods } = this.store;
    if (!health) return;
    const ready = health.conditions?.find((condition) => condition.type === 'Ready');
    let running = 0;
    for (const row of pods.values()) running += row.running;
    const waited = health.last_seen_seconds === null ? NaN : health.last_seen_seconds + (Date.now() - health.read) / 1000;
    const facts = [
      ['Node', ready ? (ready.status === 'True' ? 'Ready' : `NotReady: ${ready.message}`) : '–'],
      ['Pods', this.store.loaded ? `${count(pods.size, 'pod')}, ${count(running, 'container')} running` : '…'],
      ['Last full relist', Number.isFinite(waited) ? `${duration(Math.max(0, Math.floor(waited)))} ago` : 'none yet'],
      ['Changes found by', health.mode ? modeWords(health.mode) : '–', health.mode?.reason],
      ['Runtime', about?.runtime ? `${about.runtime.name} ${about.runtime.version}` : about?.runtime_error ?? '–', about?.endpoint],
    ];
    const key = JSON.stringify(facts);
    if (key === this.factKey) return;
    this.factKey = key;
    show(this.facts, facts.map(([name, value, title]) => h('div', { title }, h('dt', {}, name), h('dd', {}, value))));
  }
}

function modeWords(mode) {
  const parts = [];
  if (mode.mode === 'evented') parts.push('events');
  if (mode.witness?.on) parts.push('the kernel');
  parts.push(`relists every ${duration(mode.full_look_period_seconds)}`);
  return parts.join(', ');
}

/** Commands to go on with at a prompt. */
export function nextCommands(pod) {
  const name = `${pod.namespace}/${pod.name}`;
  // A name that a shell would read otherwise is quoted.
  const safe = /^[A-Za-z0-9._/-]+$/.test(name) ? name : `'${name.replaceAll("'", "'\\''")}'`;
  return h('p', { class: 'commands' }, command(`pleg inspect ${safe}`), command(`pleg watch --pod ${safe} --since 10m`));
}

// Words for numbers, times and states. Pure.

/** Milliseconds since 1970 of an RFC 3339 time; NaN for none. */
export function millis(text) {
  return text ? Date.parse(text) : NaN;
}

/** A duration in seconds, in at most two units: 350ms, 4.2s, 3m5s, 2h10m, 4d3h. */
export function duration(seconds) {
  if (!Number.isFinite(seconds)) return '';
  const value = Math.max(0, seconds);
  if (value < 0.001) return value === 0 ? '0s' : `${Math.round(value * 1e6)}µs`;
  if (value < 1) return `${Math.round(value * 1000)}ms`;
  if (value < 10) return `${Number(value.toFixed(1))}s`;
  const whole = Math.floor(value);
  const [d, hours, m, rest] = [Math.floor(whole / 86400), Math.floor(whole / 3600) % 24, Math.floor(whole / 60) % 60, whole % 60];
  if (d > 0) return hours ? `${d}d${hours}h` : `${d}d`;
  if (hours > 0) return m ? `${hours}h${m}m` : `${hours}h`;
  if (m > 0) return rest ? `${m}m${rest}s` : `${m}m`;
  return `${rest}s`;
}

/** An age for tables: one unit, as kubectl has it for older things. */
export function age(seconds) {
  if (!Number.isFinite(seconds)) return '–';
  const value = Math.max(0, Math.floor(seconds));
  if (value < 120) return `${value}s`;
  if (value < 7200) return `${Math.floor(value / 60)}m`;
  if (value < 172800) return `${Math.floor(value / 3600)}h`;
  return `${Math.floor(value / 86400)}d`;
}

const two = (n) => String(n).padStart(2, '0');

/** The time of day, local. */
export function clock(ms, withMillis = false) {
  if (!Number.isFinite(ms)) return '–';
  const at = new Date(ms);
  const text = `${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;
  return withMillis ? `${text}.${String(at.getMilliseconds()).padStart(3, '0')}` : text;
}

/** Date and time, local; the date only if it is not today's. */
export function moment(ms, now = Date.now()) {
  if (!Number.isFinite(ms)) return '–';
  const at = new Date(ms);
  const same = at.toDateString() === new Date(now).toDateString();
  return same ? clock(ms) : `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())} ${clock(ms)}`;
}

const WITH_COMMAS = new Intl.NumberFormat('en', { maximumFractionDigits: 0 });

/** 12,345. */
export function number(n) {
  return Number.isFinite(n) ? WITH_COMMAS.format(n) : '–';
}

/** "1 pod", "2 pods". */
export function count(n, noun) {
  return `${number(n)} ${noun}${n === 1 ? '' : 's'}`;
}

/** An id as people read it. */
export function shortId(id) {
  return id && id.length > 13 ? id.slice(0, 13) : id ?? '';
}

/** A text with its ids as people read them, and digests of images too. */
export function shortIds(text) {
  return String(text ?? '').replace(/\b([0-9a-f]{13})[0-9a-f]{51}\b/g, '$1');
}

/** stuck-inspection → StuckInspection, as the tables of the command line have it. */
export function troubleWord(trouble) {
  return String(trouble).split('-').map((part) => part.charAt(0).toUpperCase() + part.slice(1)).join('');
}

/** What the table says about a pod: the same words as `pleg pods`. */
export function podState(row) {
  if (row.status_stale) return 'StatusStale';
  if (row.quarantined) return 'Quarantined';
  if (row.trouble) return troubleWord(row.trouble);
  return row.state;
}

/** How it is: good, bad, warn or idle. Colour is never the only sign: the word stands beside it. */
export function podTone(row) {
  if (row.status_stale || row.quarantined || row.trouble) return 'warn';
  switch (row.state) {
    case 'Running': return 'good';
    case 'Completed': case 'Exited': case 'Created': case 'NoContainers': return 'idle';
    case 'Removed': return 'gone';
    default: return 'bad';
  }
}

/** How an event is: good, bad, warn or idle. */
export function eventTone(event) {
  switch (event.type) {
    case 'ContainerStarted': case 'PlegHealthy': case 'TroubleEnded': return 'good';
    case 'ContainerDied': return event.exit_code ? 'bad' : 'idle';
    case 'PlegNotHealthy': return 'bad';
    case 'PlegDegraded': case 'TroubleStarted': case 'Gap': return 'warn';
    default: return 'idle';
  }
}

/** What an event is about, in a few words, beyond its type and pod. */
export function eventDetail(event) {
  const parts = [];
  if (event.type === 'Gap') return gapDetail(event);
  if (event.type === 'DaemonStarted' && event.previous) return event.previous.clean ? 'it had been stopped' : 'it had been killed, or had crashed';
  if (event.trouble) parts.push(troubleWord(event.trouble));
  if (event.exit_code !== undefined) parts.push(`exit ${event.exit_code}`);
  if (event.reason) parts.push(shortIds(event.reason));
  if (event.subject?.kind === 'sandbox' && event.type === 'PodSandboxChanged') parts.push(`sandbox ${event.subject.state ?? 'gone'}`);
  if (event.lasted !== undefined) parts.push(`lasted ${duration(event.lasted)}`);
  return parts.join(' · ');
}

function gapDetail(gap) {
  if (gap.reason === 'restarted') return 'the daemon restarted: what happened meanwhile was not seen';
  const missed = gap.to >= gap.from ? `${count(gap.to - gap.from + 1, 'event')} no longer held` : 'events no longer held';
  return missed;
}

/** app#2: a container and its attempt. */
export function containerName(subject) {
  if (!subject || subject.kind !== 'container') return '';
  return subject.attempt ? `${subject.name}#${subject.attempt}` : subject.name;
}

/** The address of a pod's page. */
export function podPath(pod) {
  return `/pods/${encodeURIComponent(pod.namespace)}/${encodeURIComponent(pod.name)}`;
}

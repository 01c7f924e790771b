// Counts of events over time, in buckets of ten seconds. Pure: events in, numbers out. Its size is bounded by time, not by events.

const FINE = 10_000; // ms
const MOST = 7 * 24 * 360; // a week of buckets
const SAMPLES = 64; // lags kept of a bucket
const MOST_TROUBLES = 500;

const newBucket = () => ({ started: 0, ended: 0, failed: 0, other: 0, lags: [], most: 0, relists: 0, relistSum: 0, relistMost: 0 });

/** Of a sorted list, the value below which this part of it is. */
export function quantile(sorted, part) {
  return sorted.length ? sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * part))] : NaN;
}

/** What identifies a trouble from its start to its end. */
export function troubleKey(event) {
  return [event.trouble, event.pod?.uid ?? '', event.subject?.id ?? ''].join('|');
}

/** Collects events, gaps and relists. */
export class Series {
  constructor() {
    this.fine = new Map();
    this.troubles = [];
    this.open = new Map();
    this.levels = []; // {at, level}
    this.gaps = [];
    this.oldest = Infinity;
    this.last = null;
    this.events = 0;
  }

  bucket(at) {
    const key = Math.floor(at / FINE);
    let bucket = this.fine.get(key);
    if (!bucket) {
      this.fine.set(key, bucket = newBucket());
      if (this.fine.size > MOST) this.fine.delete(this.fine.keys().next().value);
    }
    return bucket;
  }

  /** An event or a gap, in their order. */
  add(item) {
    if (item.type === 'Gap') {
      this.gaps.push({ from: this.last ?? item.at, to: item.at, reason: item.reason });
      if (this.gaps.length > 100) this.gaps.shift();
      return;
    }
    if (!Number.isFinite(item.at)) return;
    // What was there already is no change.
    if (!item.initial && item.type !== 'PodSync') {
      const bucket = this.bucket(item.at);
      this.events += 1;
      if (item.type === 'ContainerStarted') bucket.started += 1;
      else if (item.type === 'ContainerDied' && item.exit_code !== undefined) bucket[item.exit_code === 0 ? 'ended' : 'failed'] += 1;
      else bucket.other += 1;
      if (item.lag !== undefined) {
        bucket.most = Math.max(bucket.most, item.lag);
        if (bucket.lags.length < SAMPLES) bucket.lags.push(item.lag);
      }
    }
    this.trouble(item);
    this.oldest = Math.min(this.oldest, item.at);
    this.last = item.at;
  }

  trouble(item) {
    const levels = { PlegHealthy: 'Healthy', PlegDegraded: 'Degraded', PlegNotHealthy: 'Unhealthy' };
    if (item.type in levels) this.levels.push({ at: item.at, level: levels[item.type], reason: item.reason });
    if (item.type === 'TroubleStarted') {
      const trouble = { trouble: item.trouble, pod: item.pod, subject: item.subject, from: item.at, to: null, text: item.reason };
      this.troubles.push(trouble);
      this.open.set(troubleKey(item), trouble);
      if (this.troubles.length > MOST_TROUBLES) this.troubles.shift();
    } else if (item.type === 'TroubleEnded') {
      const known = this.open.get(troubleKey(item));
      this.open.delete(troubleKey(item));
      if (known) known.to = item.at;
      else this.troubles.push({ trouble: item.trouble, pod: item.pod, subject: item.subject, from: item.at - (item.lasted ?? 0) * 1000, to: item.at, text: item.reason });
    }
  }

  /** Another run of the daemon reports what is wrong anew. */
  restarted(at) {
    for (const trouble of this.open.values()) trouble.to = at;
    this.open.clear();
  }

  /** Relists since the sample before: how many, and their seconds. */
  addRelists({ time, count, sum, most }) {
    const bucket = this.bucket(time);
    bucket.relists += count;
    bucket.relistSum += sum;
    bucket.relistMost = Math.max(bucket.relistMost, most ?? sum / count);
  }

  /** `n` buckets from `from` to `to`. */
  view(from, to, n) {
    const step = (to - from) / n;
    const coarse = Array.from({ length: n }, (_, index) => ({ at: from + index * step, ...newBucket() }));
    for (const [key, bucket] of this.fine) {
      const place = Math.floor((key * FINE + FINE / 2 - from) / step);
      if (place < 0 || place >= n) continue;
      const sum = coarse[place];
      for (const name of ['started', 'ended', 'failed', 'other', 'relists', 'relistSum']) sum[name] += bucket[name];
      for (const name of ['most', 'relistMost']) sum[name] = Math.max(sum[name], bucket[name]);
      sum.lags.push(...bucket.lags);
    }
    for (const bucket of coarse) {
      bucket.lags.sort((a, b) => a - b);
      bucket.median = quantile(bucket.lags, 0.5);
      bucket.relist = bucket.relists ? bucket.relistSum / bucket.relists : NaN;
      bucket.total = bucket.started + bucket.ended + bucket.failed + bucket.other;
    }
    const within = (part) => part.from < to && (part.to ?? to) > from;
    return { from, to, step, buckets: coarse, troubles: this.troubles.filter(within), gaps: this.gaps.filter(within) };
  }
}

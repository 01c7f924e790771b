// Follows the events of the daemon, across its restarts. Heartbeats tell a stopped daemon from a quiet node.

import { openLines } from './api.js';

const SILENCE = 15_000; // three heartbeats
const PAUSES = [200, 3_000]; // between attempts: the first, and the longest

/**
 * Calls `on.item(event or gap, isBacklog)`, `on.live()` once all that was held is read, and `on.lost(why)` when the daemon is gone.
 * It asks again without end, from the last cursor on.
 */
export class Follower {
  constructor(since, on) {
    this.since = since;
    this.on = on;
    this.cursor = null;
    this.stopped = false;
    this.wake = null;
    this.abort = null;
  }

  start() {
    this.stopped = false;
    this.run();
    return this;
  }

  /** Ends it; `start` continues at the cursor. */
  stop() {
    this.stopped = true;
    this.abort?.abort();
    this.wake?.();
  }

  async run() {
    let pause = PAUSES[0];
    while (!this.stopped) {
      let why = 'the daemon closed the connection';
      try {
        await this.connection(() => { pause = PAUSES[0]; });
      } catch (error) {
        why = error.name === 'TimeoutError' ? 'no heartbeat for 15s' : error.message;
        // The daemon does not know this cursor's form: begin with what there is.
        if (error.status === 400 && this.cursor) this.cursor = null;
      }
      if (this.stopped) return;
      this.on.lost(why);
      await new Promise((resolve) => {
        this.wake = resolve;
        setTimeout(resolve, pause);
      });
      pause = Math.min(pause * 2, PAUSES[1]);
    }
  }

  async connection(connected) {
    const abort = new AbortController();
    this.abort = abort;
    let timer;
    const heard = () => {
      clearTimeout(timer);
      timer = setTimeout(() => abort.abort(new DOMException('no heartbeat', 'TimeoutError')), SILENCE);
    };
    try {
      heard();
      const since = this.cursor ?? this.since;
      const lines = await openLines(`/api/v1/events?follow=true&heartbeat=true&since=${encodeURIComponent(since)}`, abort.signal);
      connected();
      let live = false;
      for await (const line of lines) {
        heard();
        if (line.type === 'Heartbeat') {
          this.cursor = line.cursor;
          if (!live) {
            live = true;
            this.on.live();
          }
          continue;
        }
        if (line.seq) this.cursor = `${line.instance}-${line.seq}`;
        this.on.item(line, !live);
      }
    } finally {
      clearTimeout(timer);
      abort.abort();
    }
  }
}

// Axes: where round numbers and times stand. Pure.

/** Round steps from 0 to at least `most`, about `n` of them. */
export function linearTicks(most, n = 3) {
  if (!(most > 0)) return [0, 1];
  const rough = most / n;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((value) => value >= rough * 0.999);
  const ticks = [];
  for (let value = 0; value < most + step * 0.999; value += step) ticks.push(Number(value.toPrecision(12)));
  return ticks;
}

const STEPS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400].map((seconds) => seconds * 1000);

/** Times of day between two, at least `least` ms apart, on round local times. */
export function timeTicks(from, to, least) {
  const step = STEPS.find((value) => value >= least) ?? Math.ceil(least / 86_400_000) * 86_400_000;
  const offset = new Date(from).getTimezoneOffset() * 60_000;
  const ticks = [];
  for (let at = Math.ceil((from - offset) / step) * step + offset; at <= to; at += step) ticks.push(at);
  return { ticks, step };
}

const two = (n) => String(n).padStart(2, '0');

/** How a tick of this step is written. */
export function timeLabel(at, step) {
  const time = new Date(at);
  const day = time.getHours() === 0 && time.getMinutes() === 0 && step >= 3_600_000;
  if (day) return `${two(time.getMonth() + 1)}-${two(time.getDate())}`;
  const text = `${two(time.getHours())}:${two(time.getMinutes())}`;
  return step < 60_000 ? `${text}:${two(time.getSeconds())}` : text;
}

/** Where `value` stands between two powers of ten, from 0 to 1. */
export function logPart(value, least, most) {
  return Math.max(0, Math.min(1, Math.log(Math.max(value, least) / least) / Math.log(most / least)));
}

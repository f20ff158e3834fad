/** Numbers, times and words as the page writes them. */

const NUMBER = new Intl.NumberFormat('en');
const UNITS = /** @type {const} */ (['B', 'KiB', 'MiB', 'GiB', 'TiB']);

/** @param {number} count */
export function number(count) {
  return NUMBER.format(count);
}

/** @param {number} count of bytes */
export function bytes(count) {
  const step = count < 1024 ? 0 : Math.min(UNITS.length - 1, Math.floor(Math.log2(count) / 10));
  const value = count / 1024 ** step;
  return `${step && value < 10 ? value.toFixed(1) : Math.round(value)} ${UNITS[step]}`;
}

/** @param {number} seconds */
export function duration(seconds) {
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  for (const [unit, length] of /** @type {[string, number][]} */ ([['d', 86400], ['h', 3600], ['min', 60]])) {
    if (seconds >= 2 * length) return `${Math.round(seconds / length)} ${unit}`;
  }
  return `${Math.round(seconds)} s`;
}

const UNITS_OF_TIME = /** @type {[string, number][]} */ ([['d', 86400], ['h', 3600], ['min', 60], ['s', 1]]);

/**
 * A time exactly, as `seconds` reads it: "36 h", where `duration` rounds.
 *
 * @param {number} time in seconds
 */
export function period(time) {
  const [unit, length] = UNITS_OF_TIME.find(([, each]) => time % each === 0) ?? ['s', 1];
  return `${time / length} ${unit}`;
}

/**
 * @param {string} text such as "15 min", "2h" or "90"
 * @returns {number}
 * @throws {Error} where it is no time
 */
export function seconds(text) {
  const [, count, unit] = /^\s*([0-9]+(?:\.[0-9]+)?)\s*(s|min|h|d|)\s*$/.exec(text) ?? [];
  const time = Number(count) * (UNITS_OF_TIME.find(([name]) => name === unit)?.[1] ?? 1);
  if (!(time > 0)) throw new Error(`"${text.trim()}" is no time; write one such as 90 s, 15 min, 2 h or 30 d.`);
  return time;
}

/**
 * @param {string | null | undefined} moment RFC 3339
 * @param {number} [now] in milliseconds
 */
export function ago(moment, now = Date.now()) {
  if (!moment) return 'never';
  const seconds = (now - Date.parse(moment)) / 1000;
  return seconds < 2 ? 'just now' : `${duration(seconds)} ago`;
}

/** @param {string | null | undefined} moment RFC 3339 */
export function clock(moment) {
  return moment ? new Date(moment).toLocaleString() : '';
}

/**
 * @param {number} count
 * @param {string} noun its singular
 */
export function counted(count, noun) {
  return `${number(count)} ${noun}${count === 1 ? '' : 's'}`;
}

/**
 * @param {Record<string, number> | null | undefined} cached tokens by tier
 * @returns {number}
 */
export function total(cached) {
  return Object.values(cached ?? {}).reduce((sum, tokens) => sum + tokens, 0);
}

/**
 * @param {import('./gateway.js').Json} cache what was planned
 * @param {import('./gateway.js').Json} [usage] what became of it: a file can turn out to be damaged
 * @returns {import('./gateway.js').Json}
 */
export function reused(cache, usage) {
  return cache && usage?.cached ? { ...cache, cached: usage.cached } : cache;
}

/**
 * @param {import('./gateway.js').Json} cache
 * @returns {string} such as "cache hit 47/62 (76 %)"
 */
export function hit({ cached, prompt_tokens: prompt }) {
  const hits = total(cached);
  const share = prompt ? Math.round((100 * hits) / prompt) : 0;
  return `cache hit ${number(hits)}/${number(prompt)} (${hits < prompt ? Math.min(99, share) : share} %)`;
}

/** What the tiers are. */
export const TIERS = /** @type {Record<string, string>} */ ({
  hot: 'in the worker’s memory',
  warm: 'on this machine’s disk',
  remote: 'in the object store',
  none: 'nowhere: its next turn computes it again',
});

const MISSES = /** @type {Record<string, string>} */ ({
  absent: 'no KV of the rest is kept',
  evicted: 'its KV was dropped to make room',
  diverged: 'the prompt differs from the memory from there on',
  not_trimmable: 'layers of a window or a state cannot go back to there, and no checkpoint was saved',
  incompatible: 'the model’s files have changed since',
  corrupt: 'a file failed its verification, and was deleted',
  io_error: 'a file could not be read',
  below_min: 'too few tokens are common to be worth a restore',
  template: 'the chat template renders this history in another way than the memory has it',
});

const MATCHES = /** @type {Record<string, string>} */ ({
  new: 'there was no memory yet',
  exact: 'the prompt is the memory',
  extend: 'the prompt goes on from the whole memory',
  partial: 'only a beginning is common',
  diverge: 'too little is common',
});

/** @param {string | null} reason */
export function missed(reason) {
  return reason ? (MISSES[reason] ?? reason) : '';
}

/** @param {string | null} match */
export function matched(match) {
  return match ? (MATCHES[match] ?? match) : '';
}

/** What two overviews make together: rates, shares and quantiles of what happened between them. */

/** @typedef {import('../../gateway.js').Json} Json */

/**
 * @param {Json} now
 * @param {Json} before
 * @param {string} service
 * @returns {boolean} whether one process made both, whose counters can be subtracted
 */
export function sameProcess(now, before, service) {
  const began = (/** @type {Json} */ told) =>
    told.processes.find((/** @type {Json} */ each) => each.service === service)?.start_time_seconds;
  return began(now) != null && began(now) === began(before);
}

/**
 * @param {Json[] | null} models
 * @param {string} field of a model, whose values are counts by name
 * @returns {Record<string, number>} their sums over all models
 */
export function sums(models, field) {
  /** @type {Record<string, number>} */
  const found = {};
  for (const model of models ?? []) {
    for (const [name, count] of Object.entries(model[field] ?? {})) found[name] = (found[name] ?? 0) + Number(count);
  }
  return found;
}

/**
 * @param {Json[] | null} models
 * @param {string} field
 * @returns {number}
 */
export function sum(models, field) {
  return (models ?? []).reduce((total, model) => total + (model[field] ?? 0), 0);
}

/**
 * @param {Record<string, number>} now
 * @param {Record<string, number>} before
 * @returns {Record<string, number>} what came in between
 */
export function since(now, before) {
  const came = Object.entries(now).map(([name, count]) => [name, Math.max(0, count - (before[name] ?? 0))]);
  return Object.fromEntries(came);
}

/** Where a prompt token's KV can come from. */
export const REUSED = /** @type {const} */ (['hot', 'warm', 'remote']);

/**
 * @typedef {object} Point
 * @property {number} time in seconds
 * @property {Record<string, number | null>} hit per cent of the prompt tokens that came from each tier
 * @property {Record<string, number | null>} first milliseconds within which half of each tier's first tokens came
 * @property {number | null} generated tokens a second
 * @property {number | null} running
 * @property {number | null} waiting
 * @property {number | null} pool per cent
 */

/**
 * A point of the series. Shares, rates and times are null where nothing happened, or a process has begun anew; all
 * is where the worker's page is not known.
 *
 * @param {Json} now
 * @param {Json} before
 * @returns {Point}
 */
export function point(now, before) {
  const time = Date.parse(now.time) / 1000;
  const seconds = time - Date.parse(before.time) / 1000;
  const blocks = sums(now.models, 'pool_blocks');
  const all = (blocks.used ?? 0) + (blocks.free ?? 0);
  const still = {
    time,
    running: now.models && sum(now.models, 'running'),
    waiting: now.models && sum(now.models, 'waiting'),
    pool: all ? (100 * (blocks.used ?? 0)) / all : null,
  };
  if (seconds <= 0 || !sameProcess(now, before, 'worker')) return { ...still, hit: {}, first: {}, generated: null };
  const prompt = since(sums(now.models, 'prompt_tokens'), sums(before.models, 'prompt_tokens'));
  const asked = Object.values(prompt).reduce((total, count) => total + count, 0);
  const [came, had] = [firstTokens(now.models), firstTokens(before.models)];
  const half = (/** @type {string} */ tier) => {
    const found = came[tier] ? quantile(less(came[tier], had[tier]), 0.5) : null;
    return found === null ? null : 1000 * found;
  };
  return {
    ...still,
    hit: Object.fromEntries(REUSED.map((tier) => [tier, asked ? (100 * (prompt[tier] ?? 0)) / asked : null])),
    first: Object.fromEntries(['none', ...REUSED].map((tier) => [tier, half(tier)])),
    generated: Math.max(0, sum(now.models, 'generated_tokens') - sum(before.models, 'generated_tokens')) / seconds,
  };
}

/**
 * @param {Json[] | null} models
 * @returns {Record<string, Json>} the histograms of times to the first token by tier, of all models together
 */
export function firstTokens(models) {
  /** @type {Record<string, Json>} */
  const found = {};
  for (const model of models ?? []) {
    for (const [tier, times] of Object.entries(model.time_to_first_token)) {
      found[tier] = found[tier] ? joined(found[tier], times, 1) : times;
    }
  }
  return found;
}

/**
 * @param {Json} now a histogram
 * @param {Json} [before] of the same bounds
 * @returns {Json} what came in between
 */
export function less(now, before) {
  return before ? joined(now, before, -1) : now;
}

/**
 * @param {Json} one
 * @param {Json} other
 * @param {1 | -1} sign
 */
function joined(one, other, sign) {
  /** @param {[number | null, number]} bucket @param {number} place */
  const both = ([bound, count], place) => [bound, count + sign * other.buckets[place][1]];
  return { buckets: one.buckets.map(both), count: one.count + sign * other.count };
}

/**
 * @param {{buckets: [number | null, number][], count: number}} histogram cumulative counts by upper bounds
 * @param {number} share such as 0.5
 * @returns {number | null} the bound below which so many are; null where there are none, or it is beyond all bounds
 */
export function quantile({ buckets, count }, share) {
  const wanted = count * share;
  let [below, passed] = [0, 0];
  for (const [bound, reached] of count ? buckets : []) {
    if (reached >= wanted) {
      if (bound === null) return null;
      return reached === passed ? bound : below + ((bound - below) * (wanted - passed)) / (reached - passed);
    }
    [below, passed] = [bound ?? below, reached];
  }
  return null;
}

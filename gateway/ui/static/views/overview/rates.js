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
  return Object.fromEntries(Object.entries(now).map(([name, count]) => [name, Math.max(0, count - (before[name] ?? 0))]));
}

/**
 * A point of the series. Shares and rates are null where nothing happened, or a process has begun anew.
 *
 * @param {Json} now
 * @param {Json} before
 * @returns {{time: number, hit: number | null, generated: number | null, running: number, pool: number | null}}
 */
export function point(now, before) {
  const time = Date.parse(now.time) / 1000;
  const seconds = time - Date.parse(before.time) / 1000;
  const blocks = sums(now.models, 'pool_blocks');
  const all = (blocks.used ?? 0) + (blocks.free ?? 0);
  const still = { time, running: sum(now.models, 'running'), pool: all ? (100 * (blocks.used ?? 0)) / all : null };
  if (seconds <= 0 || !sameProcess(now, before, 'worker')) return { ...still, hit: null, generated: null };
  const prompt = since(sums(now.models, 'prompt_tokens'), sums(before.models, 'prompt_tokens'));
  const asked = Object.values(prompt).reduce((total, count) => total + count, 0);
  return {
    ...still,
    hit: asked ? (100 * (asked - (prompt.computed ?? 0))) / asked : null,
    generated: Math.max(0, sum(now.models, 'generated_tokens') - sum(before.models, 'generated_tokens')) / seconds,
  };
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

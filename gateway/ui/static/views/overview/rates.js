/** One overview as a point of the plots, of all models together. */

/** @typedef {import('../../gateway.js').Json} Json */

/** Where a prompt token's KV can come from. */
export const REUSED = /** @type {const} */ (['hot', 'warm', 'remote']);

/**
 * @param {Json[] | null} models
 * @param {string} field of a model, whose values are amounts by name
 * @returns {Record<string, number>} their sums over all models
 */
export function sums(models, field) {
  /** @type {Record<string, number>} */
  const found = {};
  for (const model of models ?? []) {
    for (const [name, amount] of Object.entries(model[field] ?? {})) found[name] = (found[name] ?? 0) + Number(amount);
  }
  return found;
}

/**
 * @param {Json[] | null} models
 * @param {string} field
 * @returns {number | null} the sum over all models; null where it is not known
 */
function sum(models, field) {
  const amounts = models?.map((model) => model[field]) ?? [null];
  return amounts.includes(null) ? null : amounts.reduce((total, amount) => total + amount, 0);
}

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
 * @param {Json} told
 * @returns {Point} of the time since the gateway's reading before; null where nothing happened or is known
 */
export function point({ time, models, time_to_first_token: first }) {
  const blocks = sums(models, 'pool_blocks');
  const all = (blocks.used ?? 0) + (blocks.free ?? 0);
  const prompt = sums(models, 'prompt_tokens_per_second');
  const asked = Object.values(prompt).reduce((total, rate) => total + rate, 0);
  const half = (/** @type {string} */ tier) => first[tier] ? 1000 * first[tier].p50_seconds : null;
  return {
    time: Date.parse(time) / 1000,
    hit: Object.fromEntries(REUSED.map((tier) => [tier, asked ? (100 * (prompt[tier] ?? 0)) / asked : null])),
    first: Object.fromEntries(['none', ...REUSED].map((tier) => [tier, half(tier)])),
    generated: sum(models, 'generated_tokens_per_second'),
    running: sum(models, 'running'),
    waiting: sum(models, 'waiting'),
    pool: all ? (100 * (blocks.used ?? 0)) / all : null,
  };
}

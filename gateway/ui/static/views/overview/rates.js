/** The points of the charts, as the gateway makes them, and sums over models. */

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
 * @typedef {object} Point
 * @property {string} time
 * @property {Record<string, number | null>} prompt_tokens_share of each tier
 * @property {Record<string, number | null>} time_to_first_token_p50_seconds by tier
 * @property {number | null} generated_tokens_per_second
 * @property {number | null} running
 * @property {number | null} waiting
 * @property {number | null} pool_used_share
 */

/** How much of a prompt came from memory, as a bar, and the time that this saved. */
import { html } from '../../vendor/preact.js';
import { TIERS, duration, number, total } from '../../format.js';

/** @typedef {import('../../gateway.js').Json} Json */

const LEAST = 16; // tokens of a prompt, fewer of which say little about a model's speed

/** @type {Map<string, number>} */
const fastest = new Map(); // tokens a second, by model

/**
 * @param {string} model
 * @param {Json} report of a turn that has ended: its usage and timings
 */
export function learn(model, { usage, timings }) {
  if (!usage || !(timings?.prefill > 0)) return;
  const computed = usage.prompt_tokens - total(usage.cached);
  if (computed >= LEAST) fastest.set(model, Math.max(fastest.get(model) ?? 0, computed / timings.prefill));
}

/**
 * @param {string} model
 * @param {Json} cache
 * @param {Json} [timings]
 * @returns {number} seconds that the reused tokens would have taken at the fastest speed seen, less those to load them
 */
export function saved(model, cache, timings) {
  const speed = fastest.get(model);
  return speed ? Math.max(0, total(cache.cached) / speed - (timings?.load ?? 0)) : 0;
}

/** @param {{model: string, cache: Json, timings?: Json}} props */
export function MemoryBar({ model, cache, timings }) {
  const reused = total(cache.cached);
  if (cache.match === 'new' && !reused) return null; // there was no memory
  const parts = [...Object.entries(cache.cached), ['none', cache.prompt_tokens - reused]];
  const time = saved(model, cache, timings);
  return html`<div class="given">
    <div class="bar-of" aria-hidden="true">${parts.filter(([, tokens]) => tokens > 0).map(([tier, tokens]) => html`<span
      class=${`tier ${tier}`} title=${`${number(tokens)} ${tier === 'none' ? 'computed' : TIERS[tier]}`}
      style=${{ flexGrow: tokens }}></span>`)}</div>
    <span>${number(reused)} of ${number(cache.prompt_tokens)} tokens from memory${
      time >= 0.001 ? `, ${duration(time)} saved` : ''}</span></div>`;
}

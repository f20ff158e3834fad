/** A turn's figures in a line: what its memory gave, how long it took, and how it ended. */
import { html } from '../../vendor/preact.js';
import { duration, hit, matched, missed, number, reused } from '../../format.js';
import { Tier } from '../../parts.js';

/** @typedef {import('../../gateway.js').Json} Json */

/**
 * @param {{cache?: Json, usage?: Json, timings?: Json, reason?: string | null, replayed?: boolean, trim?: Json}} props
 */
export function Report({ cache: planned, usage, timings, reason, replayed, trim }) {
  const cache = reused(planned, usage);
  const tiers = Object.keys(cache?.cached ?? {});
  return html`<p class="report">
    ${cache?.match && html`<span class="match" title=${matched(cache.match)}>${cache.match}</span>`}
    ${tiers.map((tier) => html`<${Tier} tier=${tier} />`)}
    ${cache && html`<span>${hit(cache)}</span>`}
    ${timings?.time_to_first_token > 0 && html`<span>TTFT ${duration(timings.time_to_first_token)}</span>`}
    ${usage && html`<span>${number(usage.completion_tokens)} generated${rate(usage, timings)}</span>`}
    ${cache?.miss_reason && cache.match !== 'new' && html`<span class="why">${missed(cache.miss_reason)}</span>`}
    ${trim && html`<span class="why">${number(trim.dropped_turns)} old turns left the memory to make room</span>`}
    ${reason && reason !== 'stop' && html`<span class="why">ended: ${reason.replaceAll('_', ' ')}</span>`}
    ${replayed && html`<span class="why">replayed: it was committed before</span>`}
  </p>`;
}

/**
 * @param {Json} usage
 * @param {Json} timings
 */
function rate(usage, timings) {
  const decode = timings?.decode ?? 0;
  return decode > 0 && usage.completion_tokens > 1 ? `, ${Math.round(usage.completion_tokens / decode)} tokens/s` : '';
}

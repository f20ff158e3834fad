/** What the processes are doing, while this is open. */
import { html, useEffect, useRef, useState } from '../vendor/preact.js';
import { GatewayError, json } from '../gateway.js';
import { ago, bytes, duration, number } from '../format.js';
import { Loading, Problem, Tier } from '../parts.js';
import { Plot } from './overview/plot.js';
import { point, quantile, sums } from './overview/rates.js';

/** @typedef {import('../gateway.js').Json} Json */

const SECONDS = 2;
const POINTS = 300;

export function Overview() {
  const { told, points, error } = useOverview();
  if (!told) return error ? html`<${Problem} error=${error} />` : html`<${Loading} what="Looking" />`;
  const times = points.map(({ time }) => time);
  return html`<section>
    <h1>Overview</h1>
    ${error && html`<${Problem} error=${error} />`}
    <${Processes} processes=${told.processes} />
    <div class="plots">
      <${Plot} title="Prompt tokens from memory" unit="%" most=${100} times=${times} values=${points.map(({ hit }) => hit)} />
      <${Plot} title="Generated tokens a second" unit="" times=${times} values=${points.map(({ generated }) => generated)} />
      <${Plot} title="Turns running" unit="" times=${times} values=${points.map(({ running }) => running)} />
      <${Plot} title="Pool in use" unit="%" most=${100} times=${times} values=${points.map(({ pool }) => pool)} />
    </div>
    <${Tiers} told=${told} />
    <${Room} told=${told} />
  </section>`;
}

/** The overview every two seconds while the page is in sight, and the series that they make. */
function useOverview() {
  const [state, setState] = useState({
    told: /** @type {Json} */ (null), points: /** @type {ReturnType<typeof point>[]} */ ([]), error: /** @type {unknown} */ (null),
  });
  const before = useRef(/** @type {Json} */ (null));
  useEffect(() => {
    const stop = new AbortController();
    let timer = 0;
    const look = async () => {
      try {
        if (!document.hidden) {
          const told = await json('GET', 'v1/overview', { signal: stop.signal });
          const last = before.current;
          before.current = told;
          const added = last && told.time !== last.time ? [point(told, last)] : [];
          setState(({ points }) => ({ told, points: [...points, ...added].slice(-POINTS), error: null }));
        }
      } catch (error) {
        if (stop.signal.aborted) return;
        setState((now) => ({ ...now, error }));
        if (error instanceof GatewayError && error.status === 403) return; // this key will not be answered later, either
      }
      timer = setTimeout(look, SECONDS * 1000);
    };
    look();
    return () => {
      stop.abort();
      clearTimeout(timer);
    };
  }, []);
  return state;
}

/** @param {{processes: Json[]}} props */
function Processes({ processes }) {
  return html`<div class="scrolls" tabindex="0" role="region" aria-label="Processes"><table>
    <thead><tr><th scope="col">Process</th><th scope="col">State</th><th scope="col">Version</th><th scope="col">Since</th>
      <th scope="col" class="num">Memory</th></tr></thead>
    <tbody>${processes.map((each) => html`<tr key=${each.service}><th scope="row">${each.service}</th>
      <td>${each.state.replaceAll('_', ' ')}${each.why && html`<br /><span class="quiet">${each.why}</span>`}</td>
      <td>${each.version ?? ''}</td>
      <td>${each.start_time_seconds ? ago(new Date(each.start_time_seconds * 1000).toISOString()) : ''}</td>
      <td class="num">${each.memory_bytes ? bytes(each.memory_bytes) : ''}</td></tr>`)}</tbody></table></div>`;
}

/** @param {{told: Json}} props */
function Tiers({ told }) {
  const reused = sums(told.models, 'prompt_tokens');
  /** @type {Record<string, Json>} */
  const firsts = {};
  for (const model of told.models ?? []) {
    for (const [tier, times] of Object.entries(model.time_to_first_token)) firsts[tier] = merged(firsts[tier], times);
  }
  const time = (/** @type {string} */ tier, /** @type {number} */ share) => {
    const found = firsts[tier] ? quantile(firsts[tier], share) : null;
    return found === null ? '–' : duration(found);
  };
  return html`<h2>By tier, since the worker began</h2>
    <div class="scrolls" tabindex="0" role="region" aria-label="By tier"><table>
    <thead><tr><th scope="col">Tier</th><th scope="col" class="num">Agents</th><th scope="col" class="num">Prompt tokens</th>
      <th scope="col" class="num">First token, half within</th><th scope="col" class="num">99 % within</th></tr></thead>
    <tbody>${['hot', 'warm', 'remote', 'none'].map((tier) => html`<tr key=${tier}><th scope="row"><${Tier} tier=${tier} /></th>
      <td class="num">${number(told.agents_by_tier[tier] ?? 0)}</td>
      <td class="num">${number(reused[tier === 'none' ? 'computed' : tier] ?? 0)}</td>
      <td class="num">${time(tier, 0.5)}</td><td class="num">${time(tier, 0.99)}</td></tr>`)}</tbody></table></div>`;
}

/**
 * @param {Json} one a histogram, or none
 * @param {Json} other with the same bounds
 */
function merged(one, other) {
  if (!one) return other;
  const buckets = one.buckets.map((/** @type {[number | null, number]} */ [bound, count], /** @type {number} */ place) =>
    [bound, count + other.buckets[place][1]]);
  return { buckets, count: one.count + other.count };
}

/** @param {{told: Json}} props */
function Room({ told }) {
  const { disk, remote, models } = told;
  const pool = sums(models, 'evictions');
  /** @param {Record<string, number>} counts */
  const listed = (counts) => Object.entries(counts).map(([why, count]) => `${why} ${number(count)}`).join(', ') || 'none';
  const used = disk ? Object.values(disk.bytes).reduce((sum, count) => sum + Number(count), 0) : 0;
  const facts = [
    ['Disk', disk ? `${bytes(used)}${disk.limit_bytes ? ` of ${bytes(disk.limit_bytes)}` : ''}, ${bytes(disk.free_bytes ?? 0)} free` : 'not known'],
    ['Evicted from the pool', listed(pool)],
    ['Evicted from disk', disk ? listed(disk.evictions) : 'not known'],
    ['Object store', remote ? `${remote.up ? 'answers' : 'does not answer'}, ${bytes(remote.bytes ?? 0)}` : 'none'],
    ['Damaged files', listed(told.quarantined ?? {})],
    ['Workflows running', number(told.workflows_running ?? 0)],
  ];
  return html`<h2>Room</h2><dl class="facts">${facts.map(([name, value]) => html`<div><dt>${name}</dt><dd>${value}</dd></div>`)}</dl>`;
}

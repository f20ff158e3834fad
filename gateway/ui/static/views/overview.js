/** What the processes are doing, while this is open. */
import { html, useEffect, useMemo, useRef, useState } from '../vendor/preact.js';
import { json } from '../gateway.js';
import { ago, bytes, clock, duration, number } from '../format.js';
import { poll } from '../polling.js';
import { linkTo } from '../routing.js';
import { Loading, Name, Problem, Tier } from '../parts.js';
import { Called } from './agents/called.js';
import { loadingWords, useModels } from './models/registry.js';
import { Plot } from './overview/plot.js';
import { REUSED, sums } from './overview/rates.js';

/** @typedef {import('../gateway.js').Json} Json */
/** @typedef {import('./overview/rates.js').Point} Point */

const SECONDS = 2;
const WINDOW = 900; // seconds that the charts show
const GAP = 15; // seconds without a point, after which the gateway's are asked for
const MOST = 100; // turns that the gateway tells of

export function Overview() {
  const { told, points, error } = useOverview();
  if (!told) return error ? html`<${Problem} error=${error} />` : html`<${Loading} what="Looking" />`;
  return html`<section>
    <h1>Overview</h1>
    ${error && html`<${Problem} error=${error} /><p class="quiet">This is of ${clock(told.time)}:</p>`}
    <${Processes} processes=${told.processes} />
    <${Running} told=${told} />
    <${Plots} points=${points} />
    <${Tiers} told=${told} />
    <${Room} told=${told} />
  </section>`;
}

/** The overview every two seconds while the page is in sight, and the series that they make after the gateway's own. */
function useOverview() {
  const [state, setState] = useState({
    told: /** @type {Json} */ (null), points: /** @type {Point[]} */ ([]), error: /** @type {unknown} */ (null),
  });
  const before = useRef(/** @type {Json} */ (null));
  useEffect(() => poll(
    async (signal) => {
      const told = await json('GET', 'v1/overview', { signal });
      const fresh = before.current !== null && seconds(told) - seconds(before.current) < GAP;
      return { told, history: fresh ? null : (await json('GET', 'v1/overview/history', { signal })).points };
    },
    SECONDS,
    ({ told, history }) => {
      const last = before.current;
      before.current = told;
      const added = history ?? (last && told.time !== last.time ? [told.charts] : []);
      setState(({ points }) => ({ told, points: joined(points, added, seconds(told)), error: null }));
    },
    (error) => setState((now) => ({ ...now, error })),
  ), []);
  return state;
}

/** @param {{time: string}} of */
const seconds = ({ time }) => Date.parse(time) / 1000;

/**
 * @param {Point[]} points
 * @param {Point[]} added take the place of those of their time
 * @param {number} now
 * @returns {Point[]} of the window
 */
function joined(points, added, now) {
  const earlier = added.length ? points.filter((each) => seconds(each) < seconds(added[0])) : points;
  return [...earlier, ...added].filter((each) => seconds(each) >= now - WINDOW);
}

/** @param {number | null | undefined} value @param {number} factor */
const times = (value, factor) => value == null ? null : value * factor;

/** @param {{points: Point[]}} props */
function Plots({ points }) {
  const { at, hit, first, generated, running, pool } = useMemo(() => {
    /** @param {string} name @param {string} colour @param {(point: Point) => number | null} of */
    const line = (name, colour, of) => ({ name, colour, values: points.map(of) });
    return {
      at: points.map(seconds),
      hit: REUSED.map((tier) => line(tier, `--${tier}`, (each) => times(each.prompt_tokens_share[tier], 100))),
      first: [...REUSED, 'none'].map((tier) => line(tier === 'none' ? 'computed' : tier, `--${tier}`, (each) =>
        times(each.time_to_first_token_p50_seconds[tier], 1000))),
      generated: [line('generated', '--accent', (each) => each.generated_tokens_per_second)],
      running: [line('running', '--accent', (each) => each.running), line('waiting', '--bad', (each) => each.waiting)],
      pool: [line('pool', '--accent', (each) => times(each.pool_used_share, 100))],
    };
  }, [points]);
  return html`<div class="plots">
    <${Plot} title="Cache hit" unit="%" most=${100} seconds=${WINDOW} times=${at} lines=${hit} />
    <${Plot} title="TTFT p50" unit=" ms" seconds=${WINDOW} times=${at} lines=${first} />
    <${Plot} title="Generated tokens a second" unit="" seconds=${WINDOW} times=${at} lines=${generated} />
    <${Plot} title="Turns" unit="" seconds=${WINDOW} times=${at} lines=${running} />
    <${Plot} title="Pool in use" unit="%" most=${100} seconds=${WINDOW} times=${at} lines=${pool} />
  </div>`;
}

/** Which agents speak and which wait, of turns that this gateway was asked for.
 * @param {{told: Json}} props */
function Running({ told }) {
  const turns = /** @type {Json[]} */ (told.turns_running);
  return html`<h2>Running now</h2>
    ${!turns.length && html`<p class="quiet">No turn.</p>`}
    ${turns.length > 0 && html`<div class="scrolls" tabindex="0" role="region" aria-label="Running now"><table>
      <thead><tr><th scope="col">Agent</th><th scope="col">State</th><th scope="col" class="num">For</th>
        <th scope="col" class="wide">Model</th><th scope="col" class="wide">Namespace</th></tr></thead>
      <tbody>${turns.map((turn) => html`<tr><th scope="row"><${Who} turn=${turn} namespace=${told.namespace} /></th>
        <td>${turn.state}</td>
        <td class="num">${duration(Math.max(0, (Date.parse(told.time) - Date.parse(turn.since)) / 1000))}</td>
        <td class="wide"><bdi>${turn.model_id}</bdi></td>
        <td class="wide"><bdi>${turn.namespace}</bdi></td></tr>`)}</tbody></table></div>`}
    ${turns.length >= MOST && html`<p class="quiet">The first ${MOST} are shown.</p>`}`;
}

/** @param {{turn: Json, namespace: string}} props `namespace` is that of the key */
function Who({ turn, namespace }) {
  if (!turn.agent_id) return html`<span class="quiet">of no agent</span>`;
  if (turn.namespace !== namespace) return html`<${Name} text=${turn.agent_id} />`;
  return html`<a href=${linkTo(['agents', turn.model_id, turn.agent_id])}><${Called} model=${turn.model_id}
    agent=${turn.agent_id} /></a>`;
}

/** @param {{processes: Json[]}} props */
function Processes({ processes }) {
  return html`<div class="scrolls" tabindex="0" role="region" aria-label="Processes"><table>
    <thead><tr><th scope="col">Process</th><th scope="col">State</th><th scope="col">Version</th>
      <th scope="col">Since</th><th scope="col" class="num">Memory</th></tr></thead>
    <tbody>${processes.map((each) => html`<tr key=${each.service}><th scope="row">${each.service}</th>
      <td>${each.service === 'worker' && each.state === 'not_ready'
        ? html`<${Unready} process=${each} />` : html`<${State} process=${each} />`}</td>
      <td>${each.version ?? ''}</td>
      <td>${each.start_time_seconds ? ago(new Date(each.start_time_seconds * 1000).toISOString()) : ''}</td>
      <td class="num">${each.memory_bytes ? bytes(each.memory_bytes) : ''}</td></tr>`)}</tbody></table></div>`;
}

/** A worker that loads its model, or another reason why it does not serve.
 * @param {{process: Json}} props */
function Unready({ process }) {
  const loading = useModels(true).models?.find((model) => model.state === 'loading');
  return loading ? loadingWords(loading) : html`<${State} process=${process} />`;
}

/** @param {{process: Json}} props */
function State({ process: { state, why } }) {
  return html`${state.replaceAll('_', ' ')}${why && html`<br /><span class="quiet">${why}</span>`}`;
}

/** @param {{told: Json}} props */
function Tiers({ told }) {
  const reused = sums(told.models, 'prompt_tokens');
  const time = (/** @type {string} */ tier, /** @type {string} */ percentile) => {
    const found = told.time_to_first_token_since_start[tier]?.[percentile];
    return found == null ? '–' : duration(found);
  };
  return html`<h2>By tier, since the worker began</h2>
    <div class="scrolls" tabindex="0" role="region" aria-label="By tier"><table>
    <thead><tr><th scope="col">Tier</th><th scope="col" class="num">Agents</th>
      <th scope="col" class="num">Prompt tokens</th>
      <th scope="col" class="num">TTFT p50</th><th scope="col" class="num">TTFT p99</th></tr></thead>
    <tbody>${['hot', 'warm', 'remote', 'none'].map((tier) => html`<tr key=${tier}>
      <th scope="row">${tier === 'none' ? 'computed' : html`<${Tier} tier=${tier} />`}</th>
      <td class="num">${(tier === 'hot' ? told.models : told.disk) ? number(told.agents_by_tier[tier] ?? 0) : '–'}</td>
      <td class="num">${told.models ? number(reused[tier === 'none' ? 'computed' : tier] ?? 0) : '–'}</td>
      <td class="num">${time(tier, 'p50_seconds')}</td>
      <td class="num">${time(tier, 'p99_seconds')}</td></tr>`)}</tbody></table></div>`;
}

/** @param {{told: Json}} props */
function Room({ told }) {
  const { disk, remote, models } = told;
  const pool = sums(models, 'evictions');
  /** @param {Record<string, number>} counts */
  const listed = (counts) =>
    Object.entries(counts).map(([why, count]) => `${why} ${number(count)}`).join(', ') || 'none';
  const used = disk ? Object.values(disk.bytes).reduce((sum, count) => sum + Number(count), 0) : 0;
  const facts = [
    ['Disk usage', disk
      ? `${bytes(used)}${disk.limit_bytes ? ` of ${bytes(disk.limit_bytes)}` : ''}${
        disk.free_bytes == null ? '' : `, ${bytes(disk.free_bytes)} free`}`
      : 'not known'],
    ['Evicted from the pool', models ? listed(pool) : 'not known'],
    ['Evicted from disk', disk ? listed(disk.evictions) : 'not known'],
    ['Object store', remote
      ? `${remote.up ? 'answers' : 'does not answer'}${remote.bytes == null ? '' : `, ${bytes(remote.bytes)}`}`
      : disk ? 'none' : 'not known'],
    ['Damaged files', told.quarantined ? listed(told.quarantined) : 'not known'],
    ['Workflows running', told.workflows_running == null ? 'not known' : number(told.workflows_running)],
  ];
  return html`<h2>Room</h2><dl class="facts">${facts.map(([name, value]) => html`<div>
    <dt>${name}</dt><dd>${value}</dd></div>`)}</dl>`;
}

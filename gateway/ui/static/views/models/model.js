/** A registered model: what it is, how far its load is, and how the device's memory is divided. */
import { html, useState } from '../../vendor/preact.js';
import { bytes, counted, number } from '../../format.js';
import { linkTo } from '../../routing.js';
import { Problem } from '../../parts.js';
import { Progress, useSteps } from './progress.js';
import { Quality } from './quality.js';
import { loadingWords } from './registry.js';
import { Unload } from './unload.js';

/** @typedef {import('../../gateway.js').Json} Json */

/** @param {{model: Json, onChanged: () => void}} props */
export function Model({ model, onChanged }) {
  const [unloading, setUnloading] = useState(false);
  const load = useSteps(model.model_id, 'load', onChanged);
  const loaded = model.state === 'loaded';
  const facts = [model.architecture, model.dtype,
    model.context_length && `context of ${number(model.context_length)} tokens`,
    model.kv_bits && `KV of ${model.kv_bits} bits, ${bytes(model.kv_bytes_per_token)} a token`,
    sampling(model.sampling)];
  const loads = model.state === 'loading';
  return html`<article class="model">
    <div class="row">
      <h3><bdi>${model.model_id}</bdi></h3>
      <span class=${`tier ${loaded ? 'hot' : 'none'}`}>${model.state}</span>
      ${model.is_default && html`<span class="quiet">default</span>`}
      ${model.pinned && html`<span class="quiet">pinned</span>`}
      ${model.unmeasured && html`<span class="quiet">to be measured between turns, and loaded again</span>`}
      <span class="push row"><a href=${linkTo(['talk', model.model_id])}>Talk</a>${loaded
        ? html`<button onClick=${() => setUnloading(true)}>Unload…</button>`
        : html`<button disabled=${loads || load.running} onClick=${load.begin}>Load</button>`}</span>
    </div>
    <p class="quiet">${facts.filter(Boolean).join(', ')}</p>
    ${model.error && html`<p class="problem" dir="auto">${model.error}</p>`}
    ${load.error && html`<${Problem} error=${load.error} retry=${load.begin} />`}
    ${(loads || load.running) && html`<${Progress} words=${loadingWords(model)} share=${model.progress?.share}
      onStop=${load.running ? load.stop : undefined} stop="Stop waiting" />`}
    ${model.memory && html`<${Memory} memory=${model.memory} loaded=${loaded} />`}
    ${model.kv_bits_measured?.length > 0 && html`<${Quality} model=${model} />`}
    ${unloading && html`<${Unload} model=${model} onClose=${() => setUnloading(false)} onChanged=${onChanged} />`}
  </article>`;
}

/**
 * How tokens are chosen where a request does not say.
 *
 * @param {Json | null | undefined} defaults
 */
function sampling(defaults) {
  if (!defaults) return '';
  if (!defaults.temperature) return 'greedy unless asked otherwise';
  const named = Object.entries({ top_p: 1, top_k: 0, min_p: 0, repetition_penalty: 1 })
    .filter(([name, neutral]) => (defaults[name] ?? neutral) !== neutral);
  return ['temperature', ...named.map(([name]) => name)].map((name) => `${name} ${defaults[name]}`).join(', ');
}

/** @param {{memory: Json, loaded: boolean}} props */
function Memory({ memory, loaded }) {
  const parts = /** @type {[string, string, number][]} */ ([
    ['weights', 'weights', memory.weight_bytes], ['activations', 'activations', memory.activation_bytes],
    ['pool', 'pool of KV', memory.pool_bytes], ['arrays', 'K and V as arrays', memory.batch_bytes],
    ['others', 'other models', memory.other_models_bytes],
  ]);
  const taken = parts.reduce((sum, [, , size]) => sum + size, 0);
  parts.push(['left', 'left', Math.max(0, memory.usable_bytes - taken)]);
  const said = parts.filter(([, , size]) => size > 0);
  const label = said.map(([, name, size]) => `${name} ${bytes(size)}`).join(', ');
  return html`<div class="bar-of" role="img" aria-label=${label}>
      ${said.map(([kind, , size]) => html`<span class=${`part ${kind}`} style=${{ flexGrow: size }}></span>`)}</div>
    <p class="legend">${said.map(([kind, name, size]) => html`<span>
      <i class=${`part ${kind}`}></i>${name} ${bytes(size)}</span>`)}</p>
    <p class="quiet">${bytes(memory.usable_bytes)} of the device’s ${bytes(memory.device_bytes)}${
      loaded ? '' : ', if it were loaded'};
      ${' '}the pool holds ${counted(memory.agents_4k, 'agent')} of 4,096 tokens.</p>`;
}

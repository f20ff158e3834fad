/** Models: what is loaded, how the device's memory is divided, and what bits do to the quality of KV. */
import { html, useEffect, useRef, useState } from '../vendor/preact.js';
import { events } from '../events.js';
import { explained, json, pages, partOf, request } from '../gateway.js';
import { bytes, counted, number } from '../format.js';
import { notify } from '../notices.js';
import { Dialog, Loading, Problem, useHere, useLoaded } from '../parts.js';
import { Quality } from './models/quality.js';

/** @typedef {import('../gateway.js').Json} Json */

export function Models() {
  const found = useLoaded(async (signal) => {
    /** @type {Json[]} */
    const models = [];
    for await (const page of pages('v1/model-registry', { page_size: 100 }, signal)) models.push(...page.models);
    return models;
  }, []);
  return html`<section>
    <div class="row head"><h1>Models</h1><span class="push"><button onClick=${found.again}>Refresh</button></span></div>
    ${found.error && html`<${Problem} error=${found.error} retry=${found.again} />`}
    ${!found.value && !found.error && html`<${Loading} what="Looking" />`}
    ${found.value?.map((model) => html`<${Model} key=${model.model_id} model=${model} onChanged=${found.again} />`)}
  </section>`;
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

/** @param {{model: Json, onChanged: () => void}} props */
function Model({ model, onChanged }) {
  const [unloading, setUnloading] = useState(false);
  const loading = useLoading(model.model_id, onChanged);
  const loaded = model.state === 'loaded';
  const facts = [model.architecture, model.dtype,
    model.context_length && `context of ${number(model.context_length)} tokens`,
    model.kv_bits && `KV of ${model.kv_bits} bits, ${bytes(model.kv_bytes_per_token)} a token`,
    sampling(model.sampling)];
  return html`<article class="model">
    <div class="row">
      <h2><bdi>${model.model_id}</bdi></h2>
      <span class=${`tier ${loaded ? 'hot' : 'none'}`}>${model.state}</span>
      ${model.is_default && html`<span class="quiet">default</span>`}
      ${model.pinned && html`<span class="quiet">pinned</span>`}
      <span class="push row">${loaded
        ? html`<button onClick=${() => setUnloading(true)}>Unload…</button>`
        : html`<button disabled=${loading.stage !== ''} onClick=${loading.begin}>Load</button>`}</span>
    </div>
    <p class="quiet">${facts.filter(Boolean).join(', ')}</p>
    ${model.error && html`<p class="problem">${model.error}</p>`}
    ${loading.error && html`<${Problem} error=${loading.error} retry=${loading.begin} />`}
    ${loading.stage && html`<p class="row" role="status"><label class="row">${loading.stage}
      <progress max="1" value=${loading.progress}></progress></label>
      <button onClick=${loading.stop}>Stop waiting</button></p>`}
    ${model.memory && html`<${Memory} memory=${model.memory} loaded=${loaded} />`}
    ${model.kv_bits_measured?.length > 0 && html`<${Quality} model=${model} />`}
    ${unloading && html`<${Unload} model=${model} onClose=${() => setUnloading(false)} onChanged=${onChanged} />`}
  </article>`;
}

/**
 * Loading a model, and how far it is.
 *
 * @param {string} name
 * @param {() => void} onChanged
 */
function useLoading(name, onChanged) {
  const nothing = { stage: '', progress: 0, error: /** @type {unknown} */ (null) };
  const [state, setState] = useState(nothing);
  const stopping = useRef(new AbortController());
  useEffect(() => () => stopping.current.abort(), []);
  const begin = async () => {
    const { signal } = (stopping.current = new AbortController());
    setState({ ...nothing, stage: 'wait' });
    try {
      const path = `v1/model-registry/${partOf(name, 'a model')}/load`;
      const answer = await request('POST', path, { body: {}, signal });
      let ready = false;
      for await (const event of events(/** @type {ReadableStream<Uint8Array>} */ (answer.body))) {
        const told = JSON.parse(event.data);
        if (event.name === 'error') throw new Error(told.error.message);
        ready = told.stage === 'ready';
        setState({ stage: told.stage, progress: told.progress, error: null });
      }
      if (!ready) throw new Error('The connection broke; whether it is loaded is shown after a refresh.');
      setState(nothing);
      notify(`${name} is loaded.`);
      onChanged();
    } catch (error) {
      setState({ ...nothing, error: signal.aborted ? null : error });
    }
  };
  return { ...state, begin, stop: () => stopping.current.abort() };
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

/** @param {{model: Json, onClose: () => void, onChanged: () => void}} props */
function Unload({ model, onClose, onChanged }) {
  const [error, setError] = useState(/** @type {unknown} */ (null));
  const [busy, setBusy] = useState(false);
  const here = useHere();
  const unload = async () => {
    setBusy(true);
    setError(null);
    try {
      const path = `v1/model-registry/${partOf(model.model_id, 'a model')}/unload`;
      const { freed_bytes: freed } = await json('POST', path, { body: {} });
      notify(`${model.model_id} is unloaded; ${bytes(freed)} freed.`);
      if (here.current) onClose();
      onChanged();
    } catch (failure) {
      if (!here.current) notify(`Unload ${model.model_id}: ${explained(failure)}`, true);
      setError(failure);
      setBusy(false);
    }
  };
  return html`<${Dialog} title=${`Unload ${model.model_id}`} onClose=${onClose}>
    <p>Its running turns end first, and new ones load it again. KV that is hot leaves the memory and stays on disk.</p>
    ${error && html`<${Problem} error=${error} />`}
    <div class="row end"><button onClick=${onClose}>Cancel</button><button class="primary" disabled=${busy}
      onClick=${unload}>${busy ? 'Working…' : 'Unload'}</button></div>
  </${Dialog}>`;
}

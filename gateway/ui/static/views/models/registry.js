/** The registered models: each second while one is loaded or waited for, and else now and then. */
import { useEffect, useState } from '../../vendor/preact.js';
import { json, pages, partOf } from '../../gateway.js';
import { duration } from '../../format.js';
import { poll } from '../../polling.js';

/** @typedef {import('../../gateway.js').Json} Json */

const STAGES = /** @type {Record<string, string>} */ ({
  wait: 'waiting for its turn',
  fetch: 'downloading it',
  read: 'reading the weights',
  measure: 'measuring how few bits its KV needs',
  prove: 'proving attention on this device',
  pool: 'taking memory for KV',
});

/** @param {AbortSignal} signal @returns {Promise<Json[]>} */
async function registered(signal) {
  /** @type {Json[]} */
  const models = [];
  for await (const page of pages('v1/model-registry', { page_size: 100 }, signal)) models.push(...page.models);
  return models;
}

/**
 * @param {boolean} [waits] somebody waits for one of them
 * @returns {{models?: Json[], error?: unknown, again: () => void}}
 */
export function useModels(waits = false) {
  const [state, setState] = useState(/** @type {{models?: Json[], error?: unknown}} */ ({}));
  const [round, setRound] = useState(0);
  const often = waits || state.error !== undefined
    || Boolean(state.models?.some((model) => model.state === 'loading' || model.state === 'draining'));
  useEffect(() => poll(
    registered,
    often ? 1 : 15,
    (models) => setState({ models }),
    (error) => setState((now) => ({ ...now, error })),
  ), [often, round]);
  return { ...state, again: () => setRound((now) => now + 1) };
}

/** @returns {Promise<string>} its name */
export async function defaultModel() {
  return (await json('GET', 'v1/model-registry', { query: { page_size: 1 } })).models[0].model_id;
}

/** @param {string} name @param {AbortSignal} signal */
export async function isLoading(name, signal) {
  const { model } = await json('GET', `v1/model-registry/${partOf(name, 'a model')}`, { signal });
  return model.state === 'loading';
}

/**
 * @param {Json} model one that is loading
 * @returns {string} such as "loading smol, 40 %: reading the weights, about 12 s left"
 */
export function loadingWords({ model_id: name, progress }) {
  if (!progress) return `loading ${name}`;
  const { stage, share, once } = progress;
  if (stage === 'fetch' && share >= 1) return `loading ${name}: opening its files`; // it is here, or now is
  const rest = [STAGES[stage] ?? stage, once && 'once per model', left(progress)].filter(Boolean);
  return `loading ${name}, ${percent(progress)}: ${rest.join(', ')}`;
}

/** @param {Json} progress of a download @returns {string} such as ", 40 %, about 12 s left" */
export function progressWords(progress) {
  return progress ? ['', percent(progress), left(progress)].filter((part) => part !== null).join(', ') : '';
}

/** @param {Json} progress */
function percent({ share }) {
  return `${Math.floor(100 * share)} %`;
}

/** @param {Json} progress */
function left({ remaining }) {
  return remaining >= 1 ? `about ${duration(remaining)} left` : null;
}

/** Loading a model, or pulling one: until the end, Stop, or the page is closed, whatever view it shows. */
import { html, useEffect, useRef, useState } from '../../vendor/preact.js';
import { events } from '../../events.js';
import { partOf, request } from '../../gateway.js';

/** @typedef {import('../../gateway.js').Json} Json */
/** @typedef {{running: boolean, ended?: boolean, progress?: Json, error?: unknown, stop?: () => void}} Steps */

/** @type {Map<string, Steps>} by path, as they are or ended */
const known = new Map();
/** @type {Set<() => void>} */
const watching = new Set();

/**
 * @param {string} name of the model
 * @param {'load' | 'pull'} verb
 * @param {() => void} onChanged called at each stage and at the end
 * @returns {Steps & {begin: () => void}} `ended`: without an error
 */
export function useSteps(name, verb, onChanged) {
  const path = `v1/model-registry/${partOf(name, 'a model')}/${verb}`;
  const [, draw] = useState(/** @type {Steps | undefined} */ (undefined));
  const steps = known.get(path) ?? { running: false };
  const stage = steps.running ? steps.progress?.stage : 'ended';
  const last = useRef(stage);
  useEffect(() => {
    const look = () => draw(known.get(path));
    watching.add(look);
    return () => { watching.delete(look); };
  }, [path]);
  useEffect(() => {
    if (stage && stage !== last.current) onChanged();
    last.current = stage;
  }, [stage]);
  return { ...steps, begin: () => begin(path) };
}

/** @param {string} path @returns {Promise<void>} */
async function begin(path) {
  if (known.get(path)?.running) return;
  const stopping = new AbortController();
  const { signal } = stopping;
  /** @param {Steps} steps */
  const tell = (steps) => {
    known.set(path, steps);
    for (const look of watching) look();
  };
  const running = { running: true, stop: () => stopping.abort() };
  tell(running);
  try {
    const answer = await request('POST', path, { body: {}, signal });
    let ready = false;
    for await (const event of events(/** @type {ReadableStream<Uint8Array>} */ (answer.body))) {
      const told = JSON.parse(event.data);
      if (event.name === 'error') throw new Error(told.error.message);
      const progress = told.progress?.stage ? told.progress : { stage: told.stage, share: told.progress };
      ready = progress.stage === 'ready';
      tell({ ...running, progress });
    }
    if (!ready) throw new Error('The connection broke before the end was told.');
    tell({ running: false, ended: true });
  } catch (error) {
    tell({ running: false, error: signal.aborted ? undefined : error });
  }
}

/** @param {{words: string, share?: number, onStop?: () => void, stop: string}} props `share` is not known at first */
export function Progress({ words, share, onStop, stop }) {
  return html`<p class="row" role="status"><label class="row">${words}
    ${' '}<progress max="1" value=${share}></progress></label>
    ${onStop && html`<button onClick=${onStop}>${stop}</button>`}</p>`;
}

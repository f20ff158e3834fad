/** Loading a model, or pulling one: as long as the page waits, the worker goes on. */
import { html, useEffect, useRef, useState } from '../../vendor/preact.js';
import { events } from '../../events.js';
import { partOf, request } from '../../gateway.js';

/** @typedef {import('../../gateway.js').Json} Json */

/**
 * @param {string} name of the model
 * @param {'load' | 'pull'} verb
 * @param {() => void} onChanged called at the begin and at the end
 * @returns {{running: boolean, progress?: Json, error?: unknown, begin: () => void, stop: () => void}}
 */
export function useSteps(name, verb, onChanged) {
  const nothing = {
    running: false, progress: /** @type {Json} */ (undefined), error: /** @type {unknown} */ (undefined),
  };
  const [state, setState] = useState(nothing);
  const stopping = useRef(new AbortController());
  useEffect(() => () => stopping.current.abort(), []);
  const begin = async () => {
    const { signal } = (stopping.current = new AbortController());
    setState({ ...nothing, running: true });
    try {
      const path = `v1/model-registry/${partOf(name, 'a model')}/${verb}`;
      const answer = await request('POST', path, { body: {}, signal });
      let ready = false;
      for await (const event of events(/** @type {ReadableStream<Uint8Array>} */ (answer.body))) {
        const told = JSON.parse(event.data);
        if (event.name === 'error') throw new Error(told.error.message);
        const progress = told.progress?.stage ? told.progress : { stage: told.stage, share: told.progress };
        ready = progress.stage === 'ready';
        setState({ ...nothing, running: true, progress });
        onChanged();
      }
      if (!ready) throw new Error('The connection broke before the end was told.');
      setState(nothing);
    } catch (error) {
      setState({ ...nothing, error: signal.aborted ? undefined : error });
    }
    onChanged();
  };
  return { ...state, begin, stop: () => stopping.current.abort() };
}

/** @param {{words: string, share?: number, onStop?: () => void, stop: string}} props `share` is not known at first */
export function Progress({ words, share, onStop, stop }) {
  return html`<p class="row" role="status"><label class="row">${words}
    ${' '}<progress max="1" value=${share}></progress></label>
    ${onStop && html`<button onClick=${onStop}>${stop}</button>`}</p>`;
}

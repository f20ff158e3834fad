/** A run, live while it goes on. */
import { html, useEffect, useRef, useState } from '../../vendor/preact.js';
import { explained } from '../../gateway.js';
import { Loading, Problem } from '../../parts.js';
import { linkTo } from '../../routing.js';
import { CancelDialog, EraseDialog } from './cancel.js';
import { follow, nothingYet, toResume } from './following.js';
import { Lanes } from './lanes.js';
import { RESUMABLE } from './list.js';
import { Summary } from './summary.js';

/** @typedef {import('../../gateway.js').Json} Json */

const ENDED = new Set(['succeeded', 'cancelled']);

/** @param {{id: string}} props */
export function OneRun({ id }) {
  const [now, setNow] = useState(nothingYet);
  const [asked, setAsked] = useState('');
  const stop = useRef(new AbortController());
  const latest = useRef(now);
  latest.current = now;
  /** @param {boolean} resuming */
  const begin = (resuming) => {
    stop.current.abort();
    stop.current = new AbortController();
    follow(id, latest.current, resuming, stop.current.signal, setNow);
  };
  useEffect(() => {
    begin(toResume.delete(id));
    return () => stop.current.abort();
  }, [id]);
  const { run, state, error } = now;
  const workflow = run.workflow;
  const close = () => setAsked('');
  const going = workflow && state !== 'over';
  const actions = workflow && html`
    ${going && workflow.state === 'running' && html`<button onClick=${() => setAsked('cancel')}>Cancel…</button>`}
    ${!going && RESUMABLE.has(workflow.state)
      && html`<button class="primary" onClick=${() => begin(true)}>Resume</button>`}
    ${!going && html`<button onClick=${() => setAsked('erase')}>Delete…</button>`}`;
  return html`<section class="fill">
    <p class="crumbs"><a href=${linkTo(['workflows'])}>Workflows</a></p>
    ${!workflow && !error && html`<${Loading} what="Reading the run" />`}
    ${workflow && html`<${Summary} run=${run} actions=${actions} />`}
    ${state === 'waiting' && html`<p class="problem mild" role="status">Waiting for the gateway; the run goes on where
      it was. <span dir="auto">${explained(error)}</span></p>`}
    ${state === 'failed' && html`<${Problem} error=${error} retry=${() => begin(false)} />`}
    ${workflow && html`<${Lanes} run=${run} live=${now.live}
      memoryOf=${(/** @type {Json} */ agent) => memoryOf(agent, workflow.state)} />`}
    ${asked === 'cancel' && html`<${CancelDialog} id=${id} name=${workflow.name} onClose=${close}
      onEnded=${() => {}} />`}
    ${asked === 'erase' && html`<${EraseDialog} id=${id} name=${workflow.name} onClose=${close}
      onErased=${() => { location.hash = linkTo(['workflows']); }} />`}
  </section>`;
}

/**
 * @param {Json} agent of a run
 * @param {string} state of the run
 * @returns {string} a link to its memory; "" where that ended with the run
 */
function memoryOf({ key, persists }, state) {
  return persists || !ENDED.has(state) ? linkTo(['agents', key.model_id, key.agent_id]) : '';
}

/** The runs that there are and were, the newest first. */
import { html, useEffect, useRef, useState } from '../../vendor/preact.js';
import { ago, counted, number } from '../../format.js';
import { json } from '../../gateway.js';
import { Loading, Name, Problem } from '../../parts.js';
import { linkTo } from '../../routing.js';
import { CancelDialog } from './cancel.js';
import { runPath } from './following.js';
import { State } from './summary.js';

/** @typedef {import('../../gateway.js').Json} Json */

const PAGE = 25;
const SECONDS = 5;
export const RESUMABLE = new Set(['interrupted', 'failed']);

export function AllRuns() {
  const [runs, setRuns] = useState(/** @type {Json[] | null} */ (null));
  const [next, setNext] = useState('');
  const [error, setError] = useState(/** @type {unknown} */ (null));
  const [ending, setEnding] = useState(/** @type {Json | null} */ (null));
  const life = useRef(new AbortController());
  /** @param {string} [token] of a page; the newest without */
  const load = async (token = '') => {
    const { signal } = life.current;
    try {
      const page = await json('GET', 'v1/workflows', { query: { page_size: PAGE, page_token: token }, signal });
      if (signal.aborted) return;
      setError(null);
      if (token) setNext(page.next_page_token);
      else setNext((now) => now || page.next_page_token);
      setRuns((now) => merged(now ?? [], page.workflows, token));
    } catch (failure) {
      if (!signal.aborted) setError(failure);
    }
  };
  useEffect(() => {
    life.current = new AbortController();
    load();
    const timer = setInterval(() => document.hidden || load(), SECONDS * 1000);
    return () => { clearInterval(timer); life.current.abort(); };
  }, []);
  const who = useWho(runs ?? []);
  return html`<section>
    <div class="row head"><h1>Workflows</h1>
      <span class="push row"><button onClick=${() => load()}>Refresh</button>
        <a class="button primary" href=${linkTo(['workflows', 'new'])}>Check or run a file</a></span></div>
    ${error && html`<${Problem} error=${error} retry=${() => load()} />`}
    ${!runs && !error && html`<${Loading} what="Looking" />`}
    ${runs && !runs.length && html`<p>There are no runs yet. <a href=${linkTo(['workflows', 'new'])}>Start one</a> from a
      workflow’s file.</p>`}
    ${runs && runs.length > 0 && html`<div class="scrolls" role="region" aria-label="Runs" tabindex="0"><table class="runs">
      <thead><tr><th scope="col">Workflow</th><th scope="col">State</th><th scope="col">Who</th><th scope="col" class="num">Turns</th>
        <th scope="col">Started</th><th scope="col">Last turn</th><th scope="col"><span class="unseen">Actions</span></th></tr></thead>
      <tbody>${runs.map((run) => html`<tr key=${run.workflow_id}>
        <td><a href=${linkTo(['workflows', 'run', run.workflow_id])}><${Name} text=${run.name} /></a>
          <div class="quiet id">${run.workflow_id}</div></td>
        <td><${State} state=${run.state} />${run.phase && html`<div class="quiet">in <${Name} text=${run.phase} /></div>`}</td>
        <td class="who">${who.get(run.workflow_id)?.map((name, at) => html`${at ? ', ' : ''}<${Name} text=${name} />`)}</td>
        <td class="num">${number(run.turns)}</td><td>${ago(run.create_time)}</td><td>${ago(run.update_time)}</td>
        <td>${run.state === 'running' && html`<button onClick=${() => setEnding(run)}>Cancel…</button>`}
          ${RESUMABLE.has(run.state) && html`<a class="button" href=${linkTo(['workflows', 'run', run.workflow_id],
            { resume: '' })}>Resume</a>`}</td>
      </tr>`)}</tbody></table></div>
      <p class="row quiet"><span role="status">${counted(runs.length, 'run')}${next ? ', the newest' : ''}</span>
        ${next && html`<button onClick=${() => load(next)}>Show more</button>`}</p>`}
    ${ending && html`<${CancelDialog} id=${ending.workflow_id} name=${ending.name} onClose=${() => setEnding(null)} onEnded=${() => load()} />`}
  </section>`;
}

/**
 * What is shown, with one more page of it, or with the newest page as it is now.
 *
 * @param {Json[]} shown
 * @param {Json[]} page
 * @param {string} token
 */
function merged(shown, page, token) {
  const there = new Set(page.map((run) => run.workflow_id));
  if (token) return [...shown.filter((run) => !there.has(run.workflow_id)), ...page];
  return page.length < PAGE ? page : [...page, ...shown.filter((run) => !there.has(run.workflow_id))];
}

/**
 * Who takes part in runs: a list does not say it, and it never changes, so each is asked for once, one after the other.
 *
 * @param {Json[]} runs
 * @returns {Map<string, string[]>} names by run
 */
function useWho(runs) {
  const [known, setKnown] = useState(/** @type {Map<string, string[]>} */ (new Map()));
  const missing = runs.find((run) => !known.has(run.workflow_id))?.workflow_id;
  useEffect(() => {
    if (missing === undefined) return undefined;
    const stop = new AbortController();
    /** @param {string[]} names */
    const learned = (names) => stop.signal.aborted || setKnown((now) => new Map(now).set(missing, names));
    json('GET', runPath(missing), { signal: stop.signal }).then(
      ({ workflow }) => learned(workflow.agents.map((/** @type {Json} */ agent) => agent.name)),
      () => learned([]),
    );
    return () => stop.abort();
  }, [missing]);
  return known;
}

/** The runs that there are and were, the newest first. */
import { html, useEffect, useRef, useState } from '../../vendor/preact.js';
import { ago, counted, number } from '../../format.js';
import { GatewayError, json } from '../../gateway.js';
import { Loading, Name, Problem } from '../../parts.js';
import { poll } from '../../polling.js';
import { linkTo } from '../../routing.js';
import { CancelDialog } from './cancel.js';
import { runPath, toResume } from './following.js';
import { State } from './summary.js';

/** @typedef {import('../../gateway.js').Json} Json */

const PAGE = 25;
const MOST = 1000; // that the gateway tells at once
const SECONDS = 5;
export const RESUMABLE = new Set(['interrupted', 'failed']);

export function AllRuns() {
  const [{ runs, more }, setFound] = useState({ runs: /** @type {Json[] | null} */ (null), more: false });
  const [wanted, setWanted] = useState(PAGE);
  const [round, setRound] = useState(0);
  const [error, setError] = useState(/** @type {unknown} */ (null));
  const [ending, setEnding] = useState(/** @type {Json | null} */ (null));
  const again = () => setRound((now) => now + 1);
  useEffect(() => poll(
    (signal) => newest(wanted, signal),
    SECONDS,
    (found) => {
      setError(null);
      setFound(found);
    },
    setError,
  ), [wanted, round]);
  const who = useWho(runs ?? []);
  return html`<section>
    <div class="row head"><h1>Workflows</h1>
      <span class="push row"><button onClick=${again}>Refresh</button>
        <a class="button primary" href=${linkTo(['workflows', 'new'])}>Check or run a file</a></span></div>
    ${error && html`<${Problem} error=${error} retry=${again} />`}
    ${!runs && !error && html`<${Loading} what="Looking" />`}
    ${runs && !runs.length && html`<p>There are no runs yet. <a href=${linkTo(['workflows', 'new'])}>Start one</a> from
      a workflow’s file.</p>`}
    ${runs && runs.length > 0 && html`<div class="scrolls" role="region" aria-label="Runs" tabindex="0">
      <table class="runs">
      <thead><tr><th scope="col">Workflow</th><th scope="col">State</th><th scope="col">Who</th>
        <th scope="col" class="num">Turns</th><th scope="col">Started</th><th scope="col">Last turn</th>
        <th scope="col"><span class="unseen">Actions</span></th></tr></thead>
      <tbody>${runs.map((run) => html`<tr key=${run.workflow_id}>
        <td><a href=${linkTo(['workflows', 'run', run.workflow_id])}><${Name} text=${run.name} /></a>
          <div class="quiet id">${run.workflow_id}</div></td>
        <td><${State} state=${run.state} />
          ${run.phase && html`<div class="quiet">in <${Name} text=${run.phase} /></div>`}</td>
        <td class="who">${who.get(run.workflow_id)?.map((name, at) => html`${
          at ? ', ' : ''}<${Name} text=${name} />`)}</td>
        <td class="num">${number(run.turns)}</td><td>${ago(run.create_time)}</td><td>${ago(run.update_time)}</td>
        <td>${run.state === 'running' && html`<button onClick=${() => setEnding(run)}>Cancel…</button>`}
          ${RESUMABLE.has(run.state) && html`<button onClick=${() => {
            toResume.add(run.workflow_id);
            location.hash = linkTo(['workflows', 'run', run.workflow_id]);
          }}>Resume</button>`}</td>
      </tr>`)}</tbody></table></div>
      <p class="row quiet"><span role="status">${counted(runs.length, 'run')}${more ? ', the newest' : ''}</span>
        ${more && html`<button onClick=${() => setWanted(runs.length + PAGE)}>Show more</button>`}</p>`}
    ${ending && html`<${CancelDialog} id=${ending.workflow_id} name=${ending.name} onEnded=${again}
      onClose=${() => setEnding(null)} />`}
  </section>`;
}

/**
 * All that is shown is read anew at each look, so that no row is older than another.
 *
 * @param {number} wanted
 * @param {AbortSignal} signal
 * @returns {Promise<{runs: Json[], more: boolean}>} so many runs, or all, and whether there are others
 */
async function newest(wanted, signal) {
  /** @type {Json[]} */
  const runs = [];
  let token = '';
  do {
    const query = { page_size: Math.min(MOST, wanted - runs.length), page_token: token };
    const page = await json('GET', 'v1/workflows', { query, signal });
    runs.push(...page.workflows);
    token = page.next_page_token;
  } while (token && runs.length < wanted);
  return { runs, more: Boolean(token) };
}

/**
 * Who takes part in runs: a list does not say it, and it never changes, so each is asked for once, one after the other.
 * One that could not be read is asked for again when the runs were looked at again.
 *
 * @param {Json[]} runs
 * @returns {Map<string, string[]>} names by run
 */
function useWho(runs) {
  const [known, setKnown] = useState(/** @type {Map<string, string[]>} */ (new Map()));
  const [failed, setFailed] = useState({ runs, ids: /** @type {Set<string>} */ (new Set()) });
  const latest = useRef(runs);
  latest.current = runs;
  const missing = runs.find(({ workflow_id: id }) =>
    !known.has(id) && !(failed.runs === runs && failed.ids.has(id)))?.workflow_id;
  useEffect(() => {
    if (missing === undefined) return undefined;
    const stop = new AbortController();
    /** @param {string[]} names */
    const learned = (names) => stop.signal.aborted || setKnown((now) => new Map(now).set(missing, names));
    json('GET', runPath(missing), { signal: stop.signal }).then(
      ({ workflow }) => learned(workflow.agents.map((/** @type {Json} */ agent) => agent.name)),
      (error) => {
        if (stop.signal.aborted) return;
        if (error instanceof GatewayError && error.status === 404) learned([]); // it was erased meanwhile
        else setFailed((now) => failedAlso(now, latest.current, missing));
      },
    );
    return () => stop.abort();
  }, [missing, failed]);
  return known;
}

/**
 * @param {{runs: Json[], ids: Set<string>}} before
 * @param {Json[]} runs of the last look
 * @param {string} id
 */
function failedAlso(before, runs, id) {
  return { runs, ids: new Set(before.runs === runs ? before.ids : []).add(id) };
}

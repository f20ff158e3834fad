/** What a run is, how far it is, and what memory saved in it. */
import { html, useMemo } from '../../vendor/preact.js';
import { clock, counted, duration, number } from '../../format.js';
import { Name } from '../../parts.js';
import { totals } from './totals.js';

/** @typedef {import('./state.js').Run} Run */

/** @param {{run: Run, actions?: unknown}} props `actions` stand beside its name */
export function Summary({ run, actions }) {
  const { workflow } = run;
  const sums = useMemo(() => totals(run), [run.phases]); // not for each word that is said
  const share = sums.resent ? Math.max(0, Math.round((100 * (sums.resent - sums.prefilled)) / sums.resent)) : 0;
  const running = workflow.state === 'running'; // and then `workflow` is what it was when it began
  const facts = [['Run', workflow.workflow_id],
    ['Phase', (running && run.phases[run.phases.length - 1]?.name) || workflow.phase],
    ['Started', clock(workflow.create_time)],
    running ? ['Last event', clock(run.latest)] : ['Last turn', clock(workflow.update_time)],
  ].filter(([, value]) => value);
  return html`<div class="row head"><h1><${Name} text=${workflow.name} /></h1><${State} state=${workflow.state} />
      ${actions && html`<span class="push row">${actions}</span>`}</div>
    ${workflow.error && html`<p class="problem" dir="auto">${workflow.error}</p>`}
    <dl class="facts">${facts.map(([name, value]) => html`<div><dt>${name}</dt><dd><bdi>${value}</bdi></dd></div>`)}
      <div><dt>So far</dt><dd>${counted(sums.turns, 'turn')}, ${sums.notes ? `${counted(sums.notes, 'note')}, ` : ''}${
        counted(sums.listenings, 'listening')}${sums.replayed ? `, ${number(sums.replayed)} replayed` : ''} in ${
        duration(sums.seconds)}</dd></div>
      ${sums.resent > 0 && html`<div class="saved"><dt>What memory saved</dt><dd title=${
        'Without memory each turn and each note '
        + 'sends its agent’s whole ledger again'}><strong>${share}%</strong> ${
        number(sums.prefilled)} tokens were prefilled, where
        sending each ledger again takes ${number(sums.resent)}; ${number(sums.again)} computed another time</dd></div>`}
    </dl>`;
}

/** @param {{state: string | null}} props */
export function State({ state }) {
  const name = state ?? 'unknown';
  return html`<span class=${`run-state ${name}`}>${name}</span>`;
}

/** What a run is, how far it is, and what memory saved in it. */
import { html } from '../../vendor/preact.js';
import { clock, counted, duration, number } from '../../format.js';
import { Name } from '../../parts.js';

/** @typedef {import('./state.js').Run} Run */

/** @param {{run: Run, actions?: unknown}} props `actions` stand beside its name */
export function Summary({ run, actions }) {
  const { workflow } = run;
  const sums = run.totals ?? { turns: 0, listenings: 0 };
  const { resent_tokens: resent, prefilled_tokens: prefilled } = sums;
  const share = resent ? Math.max(0, Math.round((100 * (resent - prefilled)) / resent)) : 0;
  const seconds = Math.max(0, (Date.parse(run.latest) - Date.parse(workflow.create_time)) / 1000);
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
        duration(seconds)}</dd></div>
      ${resent > 0 && html`<div class="saved"><dt>What memory saved</dt><dd title=${
        'Without memory each turn and each note '
        + 'sends its agent’s whole ledger again'}><strong>${share}%</strong> ${
        number(prefilled)} tokens were computed, where sending each ledger again takes ${number(resent)}; ${
        number(sums.recomputed_tokens)} computed another time</dd></div>`}
    </dl>`;
}

/** @param {{state: string | null}} props */
export function State({ state }) {
  const name = state ?? 'unknown';
  return html`<span class=${`run-state ${name}`}>${name}</span>`;
}

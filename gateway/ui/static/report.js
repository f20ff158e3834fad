/** A run that was saved as a file: the page's own view of it, drawn from what the file holds. It asks for nothing. */
import { html, render } from './vendor/preact.js';
import { Lanes } from './views/workflows/lanes.js';
import { added, newRun, settled } from './views/workflows/state.js';
import { Summary } from './views/workflows/summary.js';

const { workflow, events } = JSON.parse(document.getElementById('run')?.textContent || '{}');
if (workflow) {
  const run = settled(events.reduce(added, newRun()), workflow);
  document.title = workflow.name;
  render(html`<main id="main"><section class="fill"><${Summary} run=${run} /><${Lanes} run=${run} /></section></main>`,
    /** @type {HTMLElement} */ (document.getElementById('page')));
}

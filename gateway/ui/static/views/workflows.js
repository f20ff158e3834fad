/** Workflows: all runs of a namespace, one of them, or a file to check and run. */
import { html } from '../vendor/preact.js';
import { NewRun } from './workflows/file.js';
import { AllRuns } from './workflows/list.js';
import { OneRun } from './workflows/run.js';

/** @param {{place: import('../routing.js').Place}} props */
export function Workflows({ place }) {
  const [what, id] = place.parts;
  if (what === 'run' && id) return html`<${OneRun} key=${id} id=${id} />`;
  if (what === 'new') return html`<${NewRun} />`;
  return html`<${AllRuns} />`;
}

/** A run as one file that needs nothing beside it: the gateway's shell with this view's modules, and the run in it. */
import { request } from '../../gateway.js';

/** @typedef {import('../../gateway.js').Json} Json */

/** Where the shell has a place for the run; gateway/ui/report.py has the same. */
const PLACE = '<script type="application/json" id="run"></script>';

/**
 * @param {Json} workflow
 * @param {Json[]} events
 * @returns {Promise<Blob>}
 */
export async function reportOf(workflow, events) {
  const shell = await (await request('GET', 'ui/report.html')).text();
  const [before, after] = shell.split(PLACE);
  // No text of an agent ends the script.
  const data = JSON.stringify({ workflow, events }).replaceAll('<', '\\u003c');
  return new Blob([before, PLACE.replace('></', () => `>${data}</`), after], { type: 'text/html' });
}

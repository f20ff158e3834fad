/** What came out of a phase. */
import { html } from '../../vendor/preact.js';
import { counted } from '../../format.js';

/** @typedef {import('../../gateway.js').Json} Json */

/** @param {{told: Json}} props PhaseOutcome */
export function Outcome({ told }) {
  return html`<table class="outcome"><caption>Outcome after ${counted(told.rounds, 'round')}</caption>
    <tbody>${rows(told.outcome_json).map(([name, value]) => html`<tr><th scope="row"><bdi>${name}</bdi></th>
      <td dir="auto">${value}</td></tr>`)}</tbody></table>`;
}

/**
 * An outcome in names and values, one level deep.
 *
 * @param {string} text JSON
 * @returns {[string, string][]}
 */
export function rows(text) {
  let value;
  try {
    value = JSON.parse(text);
  } catch {
    return [['outcome', text]];
  }
  if (value === null || typeof value !== 'object' || Array.isArray(value)) return [['outcome', spelled(value)]];
  return Object.entries(value).map(([name, one]) => [name, spelled(one)]);
}

/** @param {Json} value @returns {string} */
function spelled(value) {
  if (value === null) return 'none';
  if (Array.isArray(value)) return value.map(spelled).join(', ') || 'none';
  if (typeof value !== 'object') return String(value);
  return Object.entries(value).map(([name, one]) => `${name}: ${spelled(one)}`).join(', ') || 'none';
}

/** How answers are generated: what is set holds for all chats of this tab, and the rest is the model's. */
import { html, useState } from '../../vendor/preact.js';

/** @typedef {import('../../gateway.js').Json} Json */

/** Each with its label, its bounds and what it is where neither the request nor the model says. */
const FIELDS = /** @type {Record<string, [string, Json, number | string]>} */ ({
  max_tokens: ['Max tokens', { min: 1, step: 1 }, 'default'],
  temperature: ['Temperature', { min: 0, max: 2, step: 'any' }, 1],
  top_p: ['Top p', { min: 0, max: 1, step: 'any' }, 1],
  top_k: ['Top k', { min: 0, step: 1 }, 0],
  min_p: ['Min p', { min: 0, max: 1, step: 'any' }, 0],
  repetition_penalty: ['Repetition penalty', { min: 0.01, max: 100, step: 'any' }, 1],
  seed: ['Seed', { min: 0, step: 1 }, 'random'],
});

/** @type {Record<string, string>} */
let typed = {};

/** @returns {Record<string, number>} what is set */
export function settings() {
  const set = Object.entries(typed).filter(([, text]) => text !== '');
  return Object.fromEntries(set.map(([name, text]) => [name, Number(text)]));
}

/** @param {Json | undefined} model @returns {boolean} whether it gives the same answer to the same words */
export function isGreedy(model) {
  return (settings().temperature ?? model?.sampling?.temperature) === 0;
}

/** @param {{model?: Json}} props its defaults are shown */
export function Settings({ model }) {
  const [shown, setShown] = useState(typed);
  /** @param {string} name */
  const changed = (name) => (/** @type {{target: HTMLInputElement}} */ event) => {
    typed = { ...typed, [name]: event.target.value };
    setShown(typed);
  };
  return html`<details class="settings"><summary>Settings</summary><div class="row">
    ${Object.entries(FIELDS).map(([name, [label, bounds, otherwise]]) => html`<label>${label} <input type="number"
      ...${bounds} placeholder=${written(model?.sampling?.[name] ?? otherwise)} value=${shown[name] ?? ''}
      onInput=${changed(name)} /></label>`)}
  </div></details>`;
}

/** @param {number | string} value @returns {string} without the noise of 32 bits */
function written(value) {
  return typeof value === 'number' ? String(Number(value.toPrecision(6))) : value;
}

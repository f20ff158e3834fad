/** Tools for an exchange: copy it, ask again or otherwise, go to its other branches. */
import { html, useState } from '../../vendor/preact.js';
import { Copy } from '../../copy.js';

/** @typedef {import('../../gateway.js').Json} Json */

/**
 * @param {{messages: Json[], answer: string, busy: boolean, greedy: boolean,
 *   sides?: import('./branches.js').Sides | null, onAsk: (messages: Json[]) => void}} props `messages` were asked;
 *   `onAsk` asks them, or others in their place
 */
export function Tools({ messages, answer, busy, greedy, sides, onAsk }) {
  const [editing, setEditing] = useState(false);
  if (editing) {
    return html`<${Edit} messages=${messages} onCancel=${() => setEditing(false)}
      onAsk=${(/** @type {Json[]} */ edited) => { setEditing(false); onAsk(edited); }} />`;
  }
  const edits = messages.some(({ role }) => role === 'user');
  return html`<div class="row doings">
    ${sides && html`<span class="row" role="group" aria-label="Branches">
      ${side(sides.before, '‹', 'The branch before')}
      <span>${sides.at + 1}/${sides.count}</span>
      ${side(sides.after, '›', 'The next branch')}</span>`}
    <${Copy} text=${answer} what="answer" />
    ${edits && html`<button class="link" disabled=${busy} onClick=${() => setEditing(true)}>Edit</button>`}
    ${edits && html`<button class="link" disabled=${busy} onClick=${() => onAsk(messages)} title=${greedy
      && 'At temperature 0 an answer has the same words again; Settings has the temperature.'}>Regenerate</button>`}
  </div>`;
}

/** @param {string | undefined} address @param {string} sign @param {string} name */
function side(address, sign, name) {
  if (!address) return html`<span class="quiet" aria-hidden="true">${sign}</span>`;
  return html`<a href=${address} aria-label=${name}>${sign}</a>`;
}

/** @param {{messages: Json[], onAsk: (messages: Json[]) => void, onCancel: () => void}} props */
function Edit({ messages, onAsk, onCancel }) {
  const [edited, setEdited] = useState(messages);
  const last = messages.findLastIndex(({ role }) => role === 'user');
  /** @param {number} at @param {string} content */
  const change = (at, content) =>
    setEdited((now) => now.map((each, place) => (place === at ? { ...each, content } : each)));
  /** @param {Event} event */
  const ask = (event) => {
    event.preventDefault();
    onAsk(edited.filter(({ role, content }) => role !== 'system' || content.trim()));
  };
  return html`<form class="fields" onSubmit=${ask}>
    ${edited.map(({ role, content }, at) => (at === last || role === 'system') && html`<label>${
      role === 'system' ? 'System prompt' : 'Your message'}<textarea rows="3" dir="auto" value=${content}
      required=${at === last}
      onInput=${(/** @type {{target: HTMLTextAreaElement}} */ e) => change(at, e.target.value)}></textarea></label>`)}
    <div class="row end"><button type="button" onClick=${onCancel}>Cancel</button>
      <button class="primary">Ask in a new branch</button></div>
  </form>`;
}

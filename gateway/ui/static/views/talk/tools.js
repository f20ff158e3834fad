/** Tools for an exchange: copy it, ask again or otherwise, go to its other branches. */
import { html, useEffect, useRef, useState } from '../../vendor/preact.js';
import { Copy } from '../../copy.js';

/** @typedef {import('../../gateway.js').Json} Json */

/**
 * @param {{messages: Json[], answer: string, busy: boolean, greedy: boolean, to: (agent: string) => string,
 *   sides?: import('./branches.js').Sides | null, onAsk: (messages: Json[]) => Promise<boolean>}} props `messages` were
 *   asked; `onAsk` asks them, or others in their place, and returns whether they are on their way
 */
export function Tools({ messages, answer, busy, greedy, to, sides, onAsk }) {
  const [editing, setEditing] = useState(false);
  const opener = useRef(/** @type {HTMLButtonElement | null} */ (null));
  const edited = useRef(false);
  useEffect(() => {
    if (edited.current && !editing) opener.current?.focus();
    edited.current = editing;
  }, [editing]);
  if (editing) {
    return html`<${Edit} messages=${messages} busy=${busy} onCancel=${() => setEditing(false)}
      onAsk=${async (/** @type {Json[]} */ others) => { if (await onAsk(others)) setEditing(false); }} />`;
  }
  const edits = messages.some(({ role }) => role === 'user');
  /** @param {string} [agent] */
  const address = (agent) => (agent && !busy ? to(agent) : undefined);
  return html`<div class="row doings">
    ${sides && html`<span class="row" role="group" aria-label="Branches">
      ${side(address(sides.before), '‹', 'The branch before')}
      <span>${sides.at + 1}/${sides.count}</span>
      ${side(address(sides.after), '›', 'The next branch')}</span>`}
    <${Copy} text=${answer} what="answer" />
    ${edits && html`<button class="link" ref=${opener} disabled=${busy}
      onClick=${() => setEditing(true)}>Edit</button>`}
    ${edits && html`<button class="link" disabled=${busy} onClick=${() => onAsk(messages)} title=${greedy
      && 'At temperature 0 an answer has the same words again; Settings has the temperature.'}>Regenerate</button>`}
  </div>`;
}

/** @param {string | undefined} address @param {string} sign @param {string} name */
function side(address, sign, name) {
  if (!address) return html`<span class="quiet" aria-hidden="true">${sign}</span>`;
  return html`<a href=${address} aria-label=${name}>${sign}</a>`;
}

/** @param {{messages: Json[], busy: boolean, onAsk: (messages: Json[]) => void, onCancel: () => void}} props */
function Edit({ messages, busy, onAsk, onCancel }) {
  const [edited, setEdited] = useState(messages);
  const last = messages.findLastIndex(({ role }) => role === 'user');
  const field = useRef(/** @type {HTMLTextAreaElement | null} */ (null));
  useEffect(() => field.current?.focus(), []);
  /** @param {number} at @param {string} content */
  const change = (at, content) =>
    setEdited((now) => now.map((each, place) => (place === at ? { ...each, content } : each)));
  /** @param {Event} event */
  const ask = (event) => {
    event.preventDefault();
    if (!busy) onAsk(edited.filter(({ role, content }) => role !== 'system' || content.trim()));
  };
  /** @param {KeyboardEvent} event */
  const pressed = (event) => { if (event.key === 'Escape' && !event.isComposing) onCancel(); };
  return html`<form class="fields" onSubmit=${ask} onKeyDown=${pressed}>
    ${edited.map(({ role, content }, at) => (at === last || role === 'system') && html`<label>${
      role === 'system' ? 'System prompt' : 'Your message'}<textarea rows="3" dir="auto" value=${content}
      required=${at === last} ref=${at === last ? field : undefined}
      onInput=${(/** @type {{target: HTMLTextAreaElement}} */ e) => change(at, e.target.value)}></textarea></label>`)}
    <div class="row end"><button type="button" onClick=${onCancel}>Cancel</button>
      <button class="primary" disabled=${busy}>Ask in a new branch</button></div>
  </form>`;
}

/** The next message: in a field Enter sends and Shift+Enter begins a line; Escape stops. */
import { html, useEffect, useRef, useState } from '../../vendor/preact.js';
import { Settings } from './settings.js';

/** @typedef {import('../../gateway.js').Json} Json */

/**
 * @param {{running: boolean, begins: boolean, focused?: boolean, model?: Json, onStop?: () => void,
 *   onSay: (messages: Json[]) => boolean | Promise<boolean>, children?: unknown}} props `begins`: a system prompt can
 *   come first; `onSay` returns whether the words are on their way
 */
export function Composer({ running, begins, focused = false, model, onSay, onStop, children }) {
  const [text, setText] = useState('');
  const [system, setSystem] = useState('');
  const form = useRef(/** @type {HTMLFormElement | null} */ (null));
  const field = useRef(/** @type {HTMLTextAreaElement | null} */ (null));
  useEffect(() => {
    if (focused && matchMedia('(pointer: fine)').matches) field.current?.focus(); // elsewhere a keyboard would open
  }, []);
  /** @param {Event} event */
  const say = async (event) => {
    event.preventDefault();
    if (running || !text.trim()) return;
    const taken = onSay([
      ...(begins && system.trim() ? [{ role: 'system', content: system }] : []), { role: 'user', content: text },
    ]);
    if (await taken) setText('');
  };
  /** @param {KeyboardEvent} event */
  const pressed = (event) => {
    if (event.key === 'Escape' && running) onStop?.();
    if (event.key !== 'Enter' || event.shiftKey || event.isComposing) return;
    const typing = event.target instanceof HTMLTextAreaElement || event.target instanceof HTMLInputElement;
    if (!typing) return; // a button's Enter is a click
    event.preventDefault();
    form.current?.requestSubmit();
  };
  return html`<form class="composer" ref=${form} onSubmit=${say} onKeyDown=${pressed}>
    ${begins && html`<details class="system"><summary>System prompt</summary>
      <textarea aria-label="System prompt" rows="3" dir="auto" value=${system}
        placeholder="Who the agent is, and how it answers. It stays the beginning of its memory."
        onInput=${(/** @type {{target: HTMLTextAreaElement}} */ e) => setSystem(e.target.value)}></textarea></details>`}
    <textarea class="message" ref=${field} aria-label="Message" rows="2" dir="auto"
      placeholder="Enter sends, Shift+Enter begins a new line." value=${text}
      onInput=${(/** @type {{target: HTMLTextAreaElement}} */ e) => setText(e.target.value)}></textarea>
    <div class="row">
      ${children}
      <${Settings} model=${model} />
      <span class="push">${running && onStop
        ? html`<button type="button" onClick=${onStop}>Stop</button>`
        : html`<button class="primary" disabled=${running || !text.trim()}>Send</button>`}</span>
    </div>
  </form>`;
}

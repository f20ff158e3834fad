/** What to say next: in a field Enter sends and Shift+Enter begins a line; Escape stops. */
import { html, useRef, useState } from '../../vendor/preact.js';

/**
 * @param {{running: boolean, onSay: (text: string, settings: Record<string, number>) => void,
 *   onStop: () => void}} props
 */
export function Composer({ running, onSay, onStop }) {
  const [text, setText] = useState('');
  const [settings, setSettings] = useState(/** @type {Record<string, string>} */ ({ max_tokens: '', temperature: '' }));
  const form = useRef(/** @type {HTMLFormElement | null} */ (null));
  /** @param {Event} event */
  const say = (event) => {
    event.preventDefault();
    if (running || !text.trim()) return;
    const given = Object.entries(settings)
      .filter(([, value]) => value !== '')
      .map(([name, value]) => [name, Number(value)]);
    onSay(text, Object.fromEntries(given));
    setText('');
  };
  /** @param {KeyboardEvent} event */
  const pressed = (event) => {
    if (event.key === 'Escape' && running) onStop();
    if (event.key !== 'Enter' || event.shiftKey || event.isComposing) return;
    const field = event.target instanceof HTMLTextAreaElement || event.target instanceof HTMLInputElement;
    if (!field) return; // a button's Enter is a click
    event.preventDefault();
    form.current?.requestSubmit();
  };
  /** @param {string} name */
  const changed = (name) => (/** @type {{target: HTMLInputElement}} */ event) =>
    setSettings((now) => ({ ...now, [name]: event.target.value }));
  return html`<form class="composer" ref=${form} onSubmit=${say} onKeyDown=${pressed}>
    <textarea aria-label="Say" rows="3" dir="auto" placeholder="Say something. Enter sends, Shift+Enter begins a line."
      value=${text} onInput=${(/** @type {{target: HTMLTextAreaElement}} */ e) => setText(e.target.value)}></textarea>
    <div class="row">
      <details class="settings"><summary>Settings</summary><div class="row">
        <label>Most tokens <input type="number" min="1" step="1" value=${settings.max_tokens}
          onInput=${changed('max_tokens')} /></label>
        <label>Temperature <input type="number" min="0" max="5" step="0.1" value=${settings.temperature}
          onInput=${changed('temperature')} /></label>
      </div></details>
      <span class="push">${running
        ? html`<button type="button" onClick=${onStop}>Stop</button>`
        : html`<button class="primary" disabled=${!text.trim()}>Send</button>`}</span>
    </div>
  </form>`;
}

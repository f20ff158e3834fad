/** The question for a fork's name. */
import { html, useState } from '../../vendor/preact.js';
import { Dialog, Problem } from '../../parts.js';

/** @param {{agent: string, onFork: (name: string) => Promise<void>, onClose: () => void}} props */
export function ForkDialog({ agent, onFork, onClose }) {
  const [name, setName] = useState(`${agent}-fork`);
  const [error, setError] = useState(/** @type {unknown} */ (null));
  /** @param {Event} event */
  const fork = (event) => {
    event.preventDefault();
    onFork(name).catch(setError);
  };
  return html`<${Dialog} title="Fork" onClose=${onClose}>
    <form onSubmit=${fork}>
      <p>A second agent with the same memory. It takes no room and no time now: both share what they have in common, and
        each keeps only what it adds.</p>
      <label>Name of the fork <input required maxlength="256" dir="auto" autocomplete="off" spellcheck=${false} value=${name}
        onInput=${(/** @type {{target: HTMLInputElement}} */ e) => setName(e.target.value)} /></label>
      ${error && html`<${Problem} error=${error} />`}
      <div class="row end"><button type="button" onClick=${onClose}>Cancel</button>
        <button class="primary">Fork</button></div>
    </form>
  </${Dialog}>`;
}

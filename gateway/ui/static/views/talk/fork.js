/** The question for a fork's name, and the fork. */
import { html, useState } from '../../vendor/preact.js';
import { agentPath, explained, json, partOf } from '../../gateway.js';
import { notify } from '../../notices.js';
import { Dialog, Problem, useHere } from '../../parts.js';
import { forgetAgents } from '../agents/loading.js';

/** @param {{model: string, agent: string, onForked: (name: string) => void, onClose: () => void}} props */
export function ForkDialog({ model, agent, onForked, onClose }) {
  const [name, setName] = useState(`${agent}-fork`);
  const [error, setError] = useState(/** @type {unknown} */ (null));
  const [busy, setBusy] = useState(false);
  const here = useHere();
  /** @param {Event} event */
  const fork = async (event) => {
    event.preventDefault();
    setBusy(true);
    try {
      partOf(name, 'an agent');
      await json('POST', agentPath(agent, 'fork'), { query: { model }, body: { new_agent_id: name } });
      forgetAgents();
      if (here.current) onForked(name);
      else notify(`Forked as ${name}.`); // its reader is elsewhere by now, and stays there
    } catch (failure) {
      if (!here.current) notify(`Fork: ${explained(failure)}`, true);
      setError(failure);
      setBusy(false);
    }
  };
  return html`<${Dialog} title="Fork" onClose=${onClose}>
    <form onSubmit=${fork}>
      <p>A second agent with the same memory. It takes no room and no time now: both share what they have in common, and
        each keeps only what it adds.</p>
      <label>Name of the fork <input required maxlength="256" dir="auto" autocomplete="off" spellcheck=${false} value=${name}
        onInput=${(/** @type {{target: HTMLInputElement}} */ e) => setName(e.target.value)} /></label>
      ${error && html`<${Problem} error=${error} />`}
      <div class="row end"><button type="button" onClick=${onClose}>Cancel</button>
        <button class="primary" disabled=${busy}>${busy ? 'Working…' : 'Fork'}</button></div>
    </form>
  </${Dialog}>`;
}

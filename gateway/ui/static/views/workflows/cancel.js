/** The questions before a run is cancelled, or its record erased. */
import { html, useState } from '../../vendor/preact.js';
import { explained, json } from '../../gateway.js';
import { notify } from '../../notices.js';
import { Dialog, Problem, useHere } from '../../parts.js';
import { runPath } from './following.js';

/** @param {{id: string, name: string, onClose: () => void, onEnded: () => void}} props */
export function CancelDialog({ id, name, onClose, onEnded }) {
  return html`<${Question} title=${`Cancel ${name}`} verb="Cancel the run" onClose=${onClose} onDone=${onEnded}
    cost="Turns that are running are dropped, and a cancelled run cannot be resumed. What was said before stays."
    ask=${async () => {
      const { workflow } = await json('POST', runPath(id, 'cancel'), { body: {} });
      return workflow.state === 'cancelled' ? `${name} is cancelled.` : `${name} had ended before.`;
    }} />`;
}

/** @param {{id: string, name: string, onClose: () => void, onErased: () => void}} props */
export function EraseDialog({ id, name, onClose, onErased }) {
  return html`<${Question} title=${`Delete ${name}`} verb="Delete for good" onClose=${onClose} onDone=${onErased}
    cost="Erases the record of this run, with all that was said in it, for good. Agents that persist stay."
    ask=${async () => {
      await json('DELETE', runPath(id));
      return `The record of ${name} is erased.`;
    }} />`;
}

/**
 * @param {{title: string, cost: string, verb: string, ask: () => Promise<string>, onClose: () => void,
 *   onDone: () => void}} props
 */
function Question({ title, cost, verb, ask, onClose, onDone }) {
  const [error, setError] = useState(/** @type {unknown} */ (null));
  const [asking, setAsking] = useState(false);
  const here = useHere();
  const act = async () => {
    setAsking(true);
    try {
      notify(await ask());
      if (!here.current) return;
      onClose();
      onDone();
    } catch (failure) {
      if (!here.current) notify(`${title}: ${explained(failure)}`, true);
      setError(failure);
      setAsking(false);
    }
  };
  return html`<${Dialog} title=${title} onClose=${onClose}>
    <p>${cost}</p>
    ${error && html`<${Problem} error=${error} />`}
    <div class="row end"><button onClick=${onClose}>Leave it</button>
      <button class="danger" disabled=${asking} onClick=${act}>${verb}</button></div>
  </${Dialog}>`;
}

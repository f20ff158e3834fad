/** The question before a model is unloaded. */
import { html, useState } from '../../vendor/preact.js';
import { explained, json, partOf } from '../../gateway.js';
import { bytes } from '../../format.js';
import { notify } from '../../notices.js';
import { Dialog, Problem, useHere } from '../../parts.js';

/** @typedef {import('../../gateway.js').Json} Json */

/** @param {{model: Json, onClose: () => void, onChanged: () => void}} props */
export function Unload({ model, onClose, onChanged }) {
  const [error, setError] = useState(/** @type {unknown} */ (null));
  const [busy, setBusy] = useState(false);
  const here = useHere();
  const unload = async () => {
    setBusy(true);
    setError(null);
    try {
      const path = `v1/model-registry/${partOf(model.model_id, 'a model')}/unload`;
      const { freed_bytes: freed } = await json('POST', path, { body: {} });
      notify(`${model.model_id} is unloaded; ${bytes(freed)} freed.`);
      if (here.current) onClose();
      onChanged();
    } catch (failure) {
      if (!here.current) notify(`Unload ${model.model_id}: ${explained(failure)}`, true);
      setError(failure);
      setBusy(false);
    }
  };
  return html`<${Dialog} title=${`Unload ${model.model_id}`} onClose=${onClose}>
    <p>Its running turns end first, and new ones load it again. KV that is hot leaves the memory and stays on disk.</p>
    ${error && html`<${Problem} error=${error} />`}
    <div class="row end"><button onClick=${onClose}>Cancel</button><button class="primary" disabled=${busy}
      onClick=${unload}>${busy ? 'Working…' : 'Unload'}</button></div>
  </${Dialog}>`;
}

/**
 * The question before something is done to an agent: what it costs, and what it needs to know. A chat asks it, too.
 *
 * It may be left while the deed goes on. How that ended is told all the same, but the page stays where its reader is.
 */
import { html, useState } from '../../vendor/preact.js';
import { explained } from '../../gateway.js';
import { notify } from '../../notices.js';
import { Dialog, Name, Problem, useHere } from '../../parts.js';

/**
 * @param {{deed: import('./deeds.js').Deed, onDone: (given: Record<string, string>, here: boolean) => void,
 *   onClose: () => void}} props `here`: the question is still open
 */
export function Confirm({ deed, onDone, onClose }) {
  const [given, setGiven] = useState(
    () => Object.fromEntries((deed.fields ?? []).map(({ name, value }) => [name, value])),
  );
  const [typed, setTyped] = useState('');
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState(/** @type {unknown} */ (null));
  const here = useHere();
  /** @param {Event} event */
  const confirm = async (event) => {
    event.preventDefault();
    setBusy(true);
    setError(null);
    try {
      notify(await deed.run(given));
      onDone(given, here.current);
    } catch (failure) {
      if (!here.current) notify(`${deed.title}: ${explained(failure)}`, true);
      setError(failure);
      setBusy(false);
    }
  };
  return html`<${Dialog} title=${deed.title} onClose=${onClose}>
    <form onSubmit=${confirm}>
      <p>${deed.cost}</p>
      ${(deed.fields ?? []).map((field) => html`<label>${field.label}<${Input} field=${field} value=${given[field.name]}
        onChange=${(/** @type {string} */ value) => setGiven({ ...given, [field.name]: value })} /></label>`)}
      ${deed.typed !== undefined && html`<label>
        <span>Type <strong><${Name} text=${deed.typed} /></strong> to confirm</span>
        <input dir="auto" autocomplete="off" spellcheck=${false} value=${typed}
          onInput=${(/** @type {{target: HTMLInputElement}} */ e) => setTyped(e.target.value)} /></label>`}
      ${error && html`<${Problem} error=${error} />`}
      <div class="row end">
        <button type="button" onClick=${onClose}>Cancel</button>
        <button class=${deed.destroys ? 'danger' : 'primary'}
          disabled=${busy || (deed.typed !== undefined && typed !== deed.typed)}>${
          busy ? 'Working…' : deed.verb}</button>
      </div>
    </form>
  </${Dialog}>`;
}

/** @param {{field: import('./deeds.js').Field, value: string, onChange: (value: string) => void}} props */
function Input({ field, value, onChange }) {
  const { type, max, choices, empty } = field;
  const changed = (/** @type {{target: {value: string}}} */ event) => onChange(event.target.value);
  if (choices) {
    return html`<select value=${value} onChange=${changed}>${choices.map(([each, means]) => html`<option value=${each}
      selected=${each === value}>${means}</option>`)}</select>`;
  }
  return html`<input required=${empty === undefined} placeholder=${empty} dir="auto" type=${type ?? 'text'}
    min=${type ? 0 : undefined} max=${max} maxlength="256" autocomplete="off" spellcheck=${false} value=${value}
    onInput=${changed} />`;
}

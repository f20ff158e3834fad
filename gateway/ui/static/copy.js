/** A button that copies a text. */
import { html, useEffect, useState } from './vendor/preact.js';

/** @param {{text: string, what: string}} props `what` is read to those who do not see what stands beside it */
export function Copy({ text, what }) {
  const [copied, setCopied] = useState(false);
  useEffect(() => {
    if (!copied) return undefined;
    const timer = setTimeout(() => setCopied(false), 2000);
    return () => clearTimeout(timer);
  }, [copied]);
  return html`<button type="button" class="link" onClick=${async () => setCopied(await toClipboard(text))}>${
    copied ? 'Copied' : 'Copy'}<span class="unseen"> ${what}</span></button>`;
}

/** @param {string} text @returns {Promise<boolean>} whether it is in the clipboard */
async function toClipboard(text) {
  const written = navigator.clipboard?.writeText(text).then(() => true, () => false);
  if (await written) return true;
  const field = document.createElement('textarea'); // over plain HTTP there is no clipboard
  field.value = text;
  field.className = 'unseen';
  document.body.append(field);
  field.select();
  const copied = document.execCommand('copy');
  field.remove();
  return copied;
}

/** Short messages of what was done, which go away, and of what failed, which stay until they are dismissed. */
import { html, useEffect, useState } from './vendor/preact.js';

const SECONDS = 6;

/** @typedef {{id: number, text: string, failed: boolean}} Notice */

/** @type {Notice[]} */
let shown = [];
let last = 0;
const changes = new EventTarget();

/** @param {Notice[]} next */
function show(next) {
  shown = next;
  changes.dispatchEvent(new Event('change'));
}

/** @param {number} id */
function dismiss(id) {
  show(shown.filter((notice) => notice.id !== id));
}

/**
 * @param {string} text
 * @param {boolean} [failed]
 */
export function notify(text, failed = false) {
  const id = ++last;
  const passing = shown.filter((notice) => !notice.failed).slice(-3);
  show([...shown.filter((notice) => notice.failed || passing.includes(notice)), { id, text, failed }]);
  if (!failed) setTimeout(() => dismiss(id), SECONDS * 1000);
}

/** Where they are shown; screen readers read them out. */
export function Notices() {
  const [now, setNow] = useState(shown);
  useEffect(() => {
    const changed = () => setNow(shown);
    changes.addEventListener('change', changed);
    return () => changes.removeEventListener('change', changed);
  }, []);
  return html`<div class="notices" role="status">${now.map((notice) => html`
    <div class=${notice.failed ? 'notice failed' : 'notice'} key=${notice.id}>
      <span dir="auto">${notice.text}</span>
      <button class="link" onClick=${() => dismiss(notice.id)}>Dismiss</button>
    </div>`)}</div>`;
}

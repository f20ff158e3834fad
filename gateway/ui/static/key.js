/**
 * The key that requests show: kept in this tab only, and forgotten with it.
 *
 * Whoever is refused for want of a key waits in `ask` until one is entered. So a view keeps what was typed into it: its
 * request goes on with the new key.
 */
import { html, useEffect, useRef, useState } from './vendor/preact.js';

const STORED = 'agentmem.key';
const SHOWN = /^[!-~]+$/; // what a header can carry
const changes = new EventTarget();

/** @type {{promise: Promise<void>, done: () => void, refused: boolean} | null} */
let question = null;

/** @returns {string} the key, or nothing */
export function key() {
  return sessionStorage.getItem(STORED) ?? '';
}

/** @param {string} entered a key, or nothing to forget it */
export function keep(entered) {
  if (entered) sessionStorage.setItem(STORED, entered);
  else sessionStorage.removeItem(STORED);
  if (entered && question) {
    const { done } = question;
    question = null;
    done();
  }
  changes.dispatchEvent(new Event('change'));
  changes.dispatchEvent(new Event('kept'));
}

/**
 * @param {() => void} heard called whenever a key was entered, or forgotten
 * @returns {() => void} ends that
 */
export function onOtherKey(heard) {
  changes.addEventListener('kept', heard);
  return () => changes.removeEventListener('kept', heard);
}

/**
 * Wait until another key is entered than the one that was refused; at once where that happened meanwhile.
 *
 * @param {string} refused the key that was shown
 * @param {AbortSignal} [signal] ends the waiting
 */
export async function ask(refused, signal) {
  if (refused !== key()) return;
  if (question === null) {
    let done = () => {};
    const promise = /** @type {Promise<void>} */ (new Promise((resolve) => { done = () => resolve(); }));
    question = { promise, done, refused: refused !== '' };
    changes.dispatchEvent(new Event('change'));
  }
  const waiting = question.promise;
  signal?.throwIfAborted();
  await /** @type {Promise<void>} */ (new Promise((resolve, reject) => {
    const aborted = () => reject(signal?.reason);
    signal?.addEventListener('abort', aborted, { once: true });
    waiting.then(() => {
      signal?.removeEventListener('abort', aborted);
      resolve();
    });
  }));
}

/** Whether a key is kept, and whether one is asked for; the caller is drawn again when that changes. */
export function useKeyState() {
  const state = () => ({ kept: key() !== '', asked: question !== null, refused: question?.refused ?? false });
  const [now, setNow] = useState(state);
  useEffect(() => {
    const changed = () => setNow(state());
    changes.addEventListener('change', changed);
    changed(); // what happened before this was drawn
    return () => changes.removeEventListener('change', changed);
  }, []);
  return now;
}

/** The question for a key, over everything else. */
export function KeyQuestion() {
  const { asked, refused } = useKeyState();
  const dialog = useRef(/** @type {HTMLDialogElement | null} */ (null));
  const [typed, setTyped] = useState('');
  const [wrong, setWrong] = useState(false);
  useEffect(() => {
    if (asked) dialog.current?.showModal();
    else dialog.current?.close();
  }, [asked]);
  /** @param {Event} event */
  const enter = (event) => {
    event.preventDefault();
    const entered = typed.trim();
    if (!entered) return;
    setWrong(!SHOWN.test(entered));
    if (!SHOWN.test(entered)) return;
    setTyped('');
    keep(entered);
  };
  const closed = () => { // a browser lets nobody refuse a second Escape
    if (question && !dialog.current?.open) dialog.current?.showModal();
  };
  return html`<dialog ref=${dialog} aria-labelledby="key-title" onClose=${closed}
    onCancel=${(/** @type {Event} */ e) => e.preventDefault()}>
    <form onSubmit=${enter}>
      <h2 id="key-title">API key</h2>
      <p>${refused
        ? 'The gateway does not take the API key of this tab. What you typed into the page is still there.'
        : 'This gateway asks for an API key. Whoever runs it makes one with agentmem keys create.'}</p>
      <label>API key <input type="password" autocomplete="off" spellcheck=${false} required value=${typed}
        onInput=${(/** @type {{target: HTMLInputElement}} */ e) => setTyped(e.target.value)} /></label>
      ${wrong && html`<p class="problem" role="alert">An API key has only ASCII letters, digits and signs.</p>`}
      <p class="quiet">It stays in this tab and goes to this gateway only.</p>
      <div class="row end"><button class="primary">Use it</button></div>
    </form>
  </dialog>`;
}

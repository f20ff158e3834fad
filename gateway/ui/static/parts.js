/** Parts that several views are made of. Names and texts of others are always text nodes. */
import { html, useEffect, useRef, useState } from './vendor/preact.js';
import { TIERS } from './format.js';
import { explained } from './gateway.js';

/** A name that somebody else chose: whatever direction it is written in, what is around it stays in place.
 * @param {{text: string}} props */
export function Name({ text }) {
  return html`<bdi class="name">${text}</bdi>`;
}

/** @param {{tier: string | null}} props */
export function Tier({ tier }) {
  const name = tier ?? 'none';
  return html`<span class=${`tier ${name}`} title=${TIERS[name] ?? name}>${name}</span>`;
}

/** @param {{error: unknown, retry?: () => void}} props */
export function Problem({ error, retry }) {
  return html`<div class="problem" role="alert"><span dir="auto">${explained(error)}</span>
    ${retry && html` <button onClick=${retry}>Try again</button>`}</div>`;
}

/** @param {{what: string}} props */
export function Loading({ what }) {
  return html`<p class="quiet loading" role="status">${what}…</p>`;
}

/**
 * What is loaded for as long as a view shows it, anew when `inputs` change; `again` loads it once more.
 *
 * @template T
 * @param {(signal: AbortSignal) => Promise<T>} load
 * @param {readonly unknown[]} inputs
 * @returns {{value: T | undefined, error: unknown, again: () => void}}
 */
export function useLoaded(load, inputs) {
  const [state, setState] = useState(/** @type {{value?: T, error?: unknown}} */ ({}));
  const [round, setRound] = useState(0);
  const before = useRef(inputs);
  useEffect(() => {
    const stop = new AbortController();
    if (inputs.some((input, place) => input !== before.current[place])) setState({});
    before.current = inputs;
    load(stop.signal).then(
      (value) => stop.signal.aborted || setState({ value }),
      (error) => stop.signal.aborted || setState((now) => ({ ...now, error })),
    );
    return () => stop.abort();
  }, [...inputs, round]);
  return { value: state.value, error: state.error, again: () => setRound((now) => now + 1) };
}

/**
 * Whether the caller is still drawn, for what goes on after its reader has left it.
 *
 * @returns {{current: boolean}}
 */
export function useHere() {
  const here = useRef(true);
  useEffect(() => () => { here.current = false; }, []);
  return here;
}

/**
 * A dialog that is open while it is drawn.
 *
 * @param {{title: string, onClose: () => void, children?: unknown, wide?: boolean}} props
 */
export function Dialog({ title, onClose, children, wide = false }) {
  const dialog = useRef(/** @type {HTMLDialogElement | null} */ (null));
  useEffect(() => {
    const before = document.activeElement;
    dialog.current?.showModal();
    return () => {
      if (before instanceof HTMLElement) before.focus();
    };
  }, []);
  return html`<dialog ref=${dialog} class=${wide ? 'wide' : ''} aria-label=${title} onClose=${onClose}>
    <h2>${title}</h2>${children}</dialog>`;
}

/**
 * A text of any length: its first piece, and the rest piece by piece as they are asked for or scrolled to.
 *
 * @param {{text: string, piece?: number}} props
 */
export function LongText({ text, piece = 8000 }) {
  const [pieces, setPieces] = useState(1);
  const end = useRef(/** @type {HTMLElement | null} */ (null));
  const cuts = [];
  for (let at = 0; cuts.length < pieces && at < text.length; at = cuts[cuts.length - 1][1]) {
    cuts.push([at, cut(text, at, piece)]);
  }
  const drawn = cuts.length ? cuts[cuts.length - 1][1] : 0;
  const rest = text.length - drawn;
  useEffect(() => {
    if (!end.current || pieces < 2) return undefined; // the first step is asked for, the others follow the scrolling
    const seen = new IntersectionObserver(([entry]) => entry.isIntersecting && setPieces((now) => now + 1));
    seen.observe(end.current);
    return () => seen.disconnect();
  }, [pieces, text]);
  return html`<div class="text" dir="auto">${cuts.map(([from, to]) => html`<span key=${from} class="piece"
      >${text.slice(from, to)}</span>`)}${rest > 0 && html`<button class="link" ref=${end}
      onClick=${() => setPieces((now) => now + 1)}>${
      `… ${rest.toLocaleString('en')} more characters`}</button>`}</div>`;
}

/**
 * @param {string} text
 * @param {number} from
 * @param {number} length
 * @returns {number} where a piece ends: at a line's end if there is one near, never inside a character
 */
export function cut(text, from, length) {
  const end = from + length;
  if (end >= text.length) return text.length;
  const line = text.lastIndexOf('\n', end);
  if (line > from + length / 2) return line + 1;
  const unit = text.charCodeAt(end - 1);
  return unit >= 0xd800 && unit < 0xdc00 ? end + 1 : end;
}

/**
 * Drawing a long list bit by bit: what is in sight at once, and the rest while the browser has nothing else to do.
 *
 * It is whole soon after it was opened, so that a browser's own search finds all of it.
 */
import { useEffect, useRef, useState } from './vendor/preact.js';

const AT_ONCE = 100;
const AT_A_TIME = 40;

/** @type {Map<Element, () => void>} */
const waiting = new Map();
let left = AT_ONCE; // until the browser has time
let planned = false;

const seen = new IntersectionObserver((entries) => {
  for (const { isIntersecting, target } of entries) if (isIntersecting) draw(target);
});

/**
 * Whether an entry of a list is drawn already. Until it is, `element` has to be a place that it will fill.
 *
 * @returns {{element: {current: HTMLElement | null}, drawn: boolean}}
 */
export function useSoon() {
  const element = useRef(/** @type {HTMLElement | null} */ (null));
  const [drawn, setDrawn] = useState(allowed);
  useEffect(() => {
    const place = element.current;
    if (drawn || !place) return undefined;
    waiting.set(place, () => setDrawn(true));
    seen.observe(place);
    plan();
    return () => {
      waiting.delete(place);
      seen.unobserve(place);
    };
  }, [drawn]);
  return { element, drawn };
}

/** @returns {boolean} whether one more may be drawn at once */
function allowed() {
  plan();
  if (left === 0) return false;
  left -= 1;
  return true;
}

/** @param {Element} place */
function draw(place) {
  waiting.get(place)?.();
  waiting.delete(place);
  seen.unobserve(place);
}

function plan() {
  if (planned) return;
  planned = true;
  if (typeof requestIdleCallback === 'function') requestIdleCallback(go);
  else setTimeout(go, 20); // Safari
}

function go() {
  planned = false;
  for (const place of [...waiting.keys()].slice(0, AT_A_TIME)) draw(place);
  if (waiting.size) plan();
  else left = AT_ONCE;
}

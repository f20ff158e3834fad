/** Scrolling along with what grows. */
import { useEffect, useLayoutEffect, useRef } from './vendor/preact.js';

/**
 * A scrolled element that stays at its end while things are added, unless its reader went up.
 *
 * @param {readonly unknown[]} inputs what is shown in it
 * @param {boolean} [atEnd] whether it begins at its end, or goes there when that becomes true
 */
export function useFollowed(inputs, atEnd = true) {
  const element = useRef(/** @type {HTMLElement | null} */ (null));
  const follows = useRef(atEnd);
  useEffect(() => {
    const scrolled = element.current;
    if (!scrolled) return undefined;
    let before = scrolled.scrollTop;
    const look = () => {
      const top = scrolled.scrollTop;
      if (scrolled.scrollHeight - top - scrolled.clientHeight < 60) follows.current = true;
      else if (top < before) follows.current = false; // its reader's doing, not what has grown since
      before = top;
    };
    scrolled.addEventListener('scroll', look, { passive: true });
    return () => scrolled.removeEventListener('scroll', look);
  }, []);
  useLayoutEffect(() => {
    if (atEnd) follows.current = true;
  }, [atEnd]);
  useLayoutEffect(() => {
    if (follows.current && element.current) element.current.scrollTop = element.current.scrollHeight;
  }, inputs);
  return element;
}

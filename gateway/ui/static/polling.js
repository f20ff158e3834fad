/** What is asked again and again, but only while somebody can see it. */
import { GatewayError } from './gateway.js';
import { onOtherKey } from './key.js';

/**
 * Ask at once, and then so many seconds after each answer. It rests while the tab is hidden; and when the key may not
 * ask, until there is another one. Whatever else fails is tried again.
 *
 * @template T
 * @param {(signal: AbortSignal) => Promise<T>} load
 * @param {number} seconds
 * @param {(value: T) => void} tell
 * @param {(error: unknown) => void} fail
 * @returns {() => void} ends it
 */
export function poll(load, seconds, tell, fail) {
  const stop = new AbortController();
  let timer = 0;
  let asking = false;
  const look = async () => {
    clearTimeout(timer);
    if (asking || document.hidden || stop.signal.aborted) return;
    asking = true;
    let allowed = true;
    try {
      const value = await load(stop.signal);
      if (!stop.signal.aborted) tell(value);
    } catch (error) {
      if (!stop.signal.aborted) fail(error);
      allowed = !(error instanceof GatewayError && error.status === 403);
    }
    asking = false;
    if (allowed && !stop.signal.aborted) timer = setTimeout(look, seconds * 1000);
  };
  const ignore = onOtherKey(look);
  document.addEventListener('visibilitychange', look);
  look();
  return () => {
    stop.abort();
    clearTimeout(timer);
    document.removeEventListener('visibilitychange', look);
    ignore();
  };
}

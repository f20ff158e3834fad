/**
 * Where the page is, in the part of its address behind "#": a view, parts, and parameters.
 *
 * Names are percent-encoded one by one, so that any name of an agent is one part: "#/agents/org%2Fmodel/marco".
 */
import { useEffect, useState } from './vendor/preact.js';

/** @typedef {{view: string, parts: string[], query: URLSearchParams}} Place */

/**
 * @param {string} hash as location.hash has it
 * @returns {Place}
 */
export function placeOf(hash) {
  const [path, query = ''] = hash.replace(/^#\/?/, '').split('?');
  const [view = '', ...parts] = path.split('/').map(decoded);
  return { view, parts: parts.filter((part) => part !== ''), query: new URLSearchParams(query) };
}

/** @param {string} part */
function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part; // written by hand
  }
}

/**
 * @param {string[]} parts the view, and what it is about
 * @param {Record<string, string>} [query]
 * @returns {string} an address for a link
 */
export function linkTo(parts, query = {}) {
  const asked = new URLSearchParams(query).toString();
  return `#/${parts.map(encodeURIComponent).join('/')}${asked ? `?${asked}` : ''}`;
}

/** @returns {Place} the present one; the caller is drawn again when it changes */
export function usePlace() {
  const [place, setPlace] = useState(() => placeOf(location.hash));
  useEffect(() => {
    const changed = () => setPlace(placeOf(location.hash));
    addEventListener('hashchange', changed);
    return () => removeEventListener('hashchange', changed);
  }, []);
  return place;
}

/** All agents, page by page: what has come is shown while the rest comes. */
import { useEffect, useRef, useState } from '../../vendor/preact.js';
import { pages } from '../../gateway.js';

const PAGE = 500;

/** @typedef {import('../../gateway.js').Json} Json */

/** @returns {{agents: Json[], done: boolean, error: unknown, stop: () => void, again: () => void}} */
export function useAgents() {
  const [state, setState] = useState({ agents: /** @type {Json[]} */ ([]), done: false, error: /** @type {unknown} */ (null) });
  const [round, setRound] = useState(0);
  const stopping = useRef(new AbortController());
  useEffect(() => {
    const { signal } = (stopping.current = new AbortController());
    /** @type {Json[]} */
    let found = [];
    const load = async () => {
      setState((now) => ({ ...now, done: false, error: null }));
      for await (const page of pages('v1/agents', { page_size: PAGE }, signal)) {
        found = [...found, ...page.agents];
        const agents = found;
        setState((now) => (round && agents.length < now.agents.length ? now : { ...now, agents })); // a refresh shrinks last
      }
      setState({ agents: found, done: true, error: null });
    };
    load().catch((error) => {
      setState((now) => ({ ...now, done: true, error: signal.aborted ? null : error }));
    });
    return () => stopping.current.abort();
  }, [round]);
  return { ...state, stop: () => stopping.current.abort(), again: () => setRound((now) => now + 1) };
}

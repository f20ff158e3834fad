/** All agents, page by page: what has come is shown while the rest comes. */
import { useEffect, useRef, useState } from '../../vendor/preact.js';
import { pages } from '../../gateway.js';
import { key } from '../../key.js';

const PAGE = 500;
const FRESH_SECONDS = 30;

/** @type {{agents: Json[], at: number, shown: string} | null} */
let whole = null;
let epoch = 0; // of what was read; a load that began in another one is not remembered

/** @typedef {import('../../gateway.js').Json} Json */

/**
 * All agents for a view that needs some of them: those of the last half a minute, or read now.
 *
 * @param {AbortSignal} signal
 * @returns {Promise<Json[]>}
 */
export async function allAgents(signal) {
  if (whole && whole.shown === key() && Date.now() - whole.at < 1000 * FRESH_SECONDS) return whole.agents;
  const began = beginning();
  /** @type {Json[]} */
  const agents = [];
  for await (const page of pages('v1/agents', { page_size: 2 * PAGE }, signal)) agents.push(...page.agents);
  return remembered(agents, began);
}

function beginning() {
  return { epoch, shown: key() };
}

/**
 * @param {Json[]} agents all of them
 * @param {ReturnType<typeof beginning>} began when they began to be read
 */
function remembered(agents, began) {
  if (began.epoch === epoch && began.shown === key()) whole = { agents, at: Date.now(), shown: began.shown };
  return agents;
}

/** What was read of all agents is not true any more. */
export function forgetAgents() {
  whole = null;
  epoch += 1;
}

/**
 * All agents as they come. `whole` says that none are left out.
 *
 * @returns {{agents: Json[], done: boolean, whole: boolean, error: unknown, stop: () => void, again: () => void}}
 */
export function useAgents() {
  const [state, setState] = useState({
    agents: /** @type {Json[]} */ ([]), done: false, whole: false, error: /** @type {unknown} */ (null),
  });
  const [round, setRound] = useState(0);
  const stopping = useRef(new AbortController());
  useEffect(() => {
    const { signal } = (stopping.current = new AbortController());
    /** @type {Json[]} */
    let found = [];
    const load = async () => {
      const began = beginning();
      setState((now) => ({ ...now, done: false, whole: false, error: null }));
      for await (const page of pages('v1/agents', { page_size: PAGE }, signal)) {
        found = [...found, ...page.agents];
        const agents = found;
        // A refresh shrinks last.
        setState((now) => (round && agents.length < now.agents.length ? now : { ...now, agents }));
      }
      setState({ agents: remembered(found, began), done: true, whole: true, error: null });
    };
    load().catch((error) => {
      setState((now) => ({ ...now, done: true, error: signal.aborted ? null : error }));
    });
    return () => stopping.current.abort();
  }, [round]);
  return { ...state, stop: () => stopping.current.abort(), again: () => setRound((now) => now + 1) };
}

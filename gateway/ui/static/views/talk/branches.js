/** Branches of a chat: agents that have its beginning from the same turns, and went on otherwise. */
import { agentPath, json } from '../../gateway.js';
import { useLoaded } from '../../parts.js';
import { allAgents } from '../agents/loading.js';

/** @typedef {import('../../gateway.js').Json} Json */
/** @typedef {{at: number, count: number, before?: string, after?: string}} Sides a turn's place among its branches,
 *   and the agents that have its neighbours */
/** @typedef {{agent: string, ids: string[], times: string[]}} Path an agent's turns, oldest first */

const MOST = 24;
const DEEPEST = 100;

/**
 * @param {string} model
 * @param {string} agent
 * @returns {Path[]} the agents with which it has a forebear in common, those last used first
 */
export function usePaths(model, agent) {
  const found = useLoaded(async (signal) => {
    const family = related((await allAgents(signal)).filter(({ key }) => key.model_id === model), agent);
    return Promise.all(family.map((each) => path(model, each, signal)));
  }, [model, agent]);
  return found.value ?? [];
}

/** @param {Json} turn @returns {string} the same for a turn and for the forks that came with it */
export function idOf({ request_id: name, first_token: first, tokens, create_time: time }) {
  return name || `${first} ${tokens} ${time}`;
}

/**
 * @param {Json[]} agents
 * @param {string} agent
 * @returns {string[]}
 */
function related(agents, agent) {
  const sources = new Map(agents.map(({ key, forked_from: from }) => [key.agent_id, from?.agent_id]));
  /** @param {string} name */
  const root = (name) => {
    let at = name;
    for (let depth = 0; depth < DEEPEST && sources.get(at); depth += 1) at = /** @type {string} */ (sources.get(at));
    return at;
  };
  const mine = root(agent);
  return agents
    .filter(({ key }) => key.agent_id !== agent && root(key.agent_id) === mine)
    .sort((one, other) => (other.update_time ?? '').localeCompare(one.update_time ?? ''))
    .slice(0, MOST)
    .map(({ key }) => key.agent_id);
}

/**
 * @param {string} model
 * @param {string} agent
 * @param {AbortSignal} signal
 * @returns {Promise<Path>}
 */
async function path(model, agent, signal) {
  const { turns } = await json('GET', agentPath(agent, 'turns'), { query: { model, page_size: 1000 }, signal });
  return {
    agent, ids: turns.map(idOf), times: turns.map((/** @type {Json} */ turn) => turn.create_time ?? ''),
  };
}

/**
 * The places of a chat's turns among their branches; null where there is no other.
 *
 * @param {Path} mine
 * @param {Path[]} others
 * @returns {(Sides | null)[]}
 */
export function sidesOf(mine, others) {
  let alike = others;
  return mine.ids.map((id, at) => {
    /** @type {Map<string, {agent: string, time: string}>} */
    const found = new Map([[id, { agent: mine.agent, time: mine.times[at] || '~' }]]); // what runs is the newest
    for (const { agent, ids, times } of alike) {
      if (ids.length > at && !found.has(ids[at])) found.set(ids[at], { agent, time: times[at] });
    }
    alike = alike.filter(({ ids }) => ids[at] === id);
    const all = [...found.values()].sort((one, other) => (one.time < other.time ? -1 : 1));
    const place = all.findIndex(({ agent }) => agent === mine.agent);
    const [before, after] = [all[place - 1]?.agent, all[place + 1]?.agent];
    return all.length > 1 ? { at: place, count: all.length, before, after } : null;
  });
}

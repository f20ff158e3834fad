/** What an agent's memory says, turn by turn, as a chat shows it. */
import { agentPath, pages } from '../../gateway.js';
import { idOf } from './branches.js';
import { learn } from './memory.js';

/** @typedef {import('../../gateway.js').Json} Json */

/** Turns that a chat shows of a long memory; the agent's own view has all. */
export const SHOWN = 40;

/**
 * @param {string} model
 * @param {string} agent
 * @param {AbortSignal} signal
 * @returns {Promise<{turns: Json[], left: number, ids: string[], times: string[]}>} the last turns, how many are left
 *   out before them, and what branches are found by, of all of them
 */
export async function history(model, agent, signal) {
  /** @type {{turns: Json[], left: number, ids: string[], times: string[]}} */
  const found = { turns: [], left: 0, ids: [], times: [] };
  try {
    for await (const page of pages(agentPath(agent, 'turns'), { model, include_text: true, page_size: 200 }, signal)) {
      for (const turn of page.turns) {
        if (turn.report) learn(model, turn.report);
        found.ids.push(idOf(turn));
        found.times.push(turn.create_time ?? '');
      }
      found.turns = [...found.turns, ...page.turns];
      found.left += Math.max(0, found.turns.length - SHOWN);
      found.turns = found.turns.slice(-SHOWN);
    }
  } catch (error) {
    const { status } = /** @type {{status?: number}} */ (error);
    if (status === 404) return { turns: [], left: 0, ids: [], times: [] }; // its first turn makes it
    throw error;
  }
  return found;
}

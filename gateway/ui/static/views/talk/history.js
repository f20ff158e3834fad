/** What an agent's memory says, turn by turn, as a chat shows it. */
import { agentPath, pages } from '../../gateway.js';

/** @typedef {import('../../gateway.js').Json} Json */

/** Turns that a chat shows of a long memory; the agent's own view has all. */
export const SHOWN = 40;

/**
 * @param {string} model
 * @param {string} agent
 * @param {AbortSignal} signal
 * @returns {Promise<{turns: Json[], left: number}>} the last turns, and how many are left out before them
 */
export async function history(model, agent, signal) {
  /** @type {Json[]} */
  let turns = [];
  let left = 0;
  try {
    for await (const page of pages(agentPath(agent, 'turns'), { model, include_text: true, page_size: 200 }, signal)) {
      turns = [...turns, ...page.turns];
      left += Math.max(0, turns.length - SHOWN);
      turns = turns.slice(-SHOWN);
    }
  } catch (error) {
    const { status } = /** @type {{status?: number}} */ (error);
    if (status === 404) return { turns: [], left: 0 }; // its first turn makes it
    throw error;
  }
  return { turns, left };
}

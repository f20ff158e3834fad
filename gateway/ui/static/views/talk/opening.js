/** From a question to the chat that asks it: a new agent, or a fork of the state before a turn. */
import { agentPath, json, pages } from '../../gateway.js';
import { forgetAgents } from '../agents/loading.js';
import { isUnnamed } from '../agents/called.js';
import { idOf } from './branches.js';
import { freeName, nameOf } from './naming.js';
import { newQuestion } from './turn.js';

/** @typedef {import('../../gateway.js').Json} Json */
/** @typedef {import('./turn.js').Asked} Asked */

/** @type {{asked: Asked, hash: string} | null} */
let waiting = null;

addEventListener('hashchange', () => {
  if (waiting?.hash !== location.hash) waiting = null; // its reader went elsewhere
});

/** @param {Asked} asked in the chat that is opened @param {string} address of that chat */
export function open(asked, address) {
  location.hash = address;
  waiting = { asked, hash: location.hash };
}

/**
 * The question that a chat begins with, once.
 *
 * @param {string} model
 * @param {string} agent
 * @returns {Asked | null}
 */
export function taken(model, agent) {
  const asked = waiting?.asked;
  if (asked?.model !== model || asked.agent !== agent) return null;
  waiting = null;
  return asked;
}

/**
 * Name a new agent by the first words to it.
 *
 * @param {string} model
 * @param {Json[]} messages
 * @param {Record<string, number>} settings
 * @returns {Promise<Asked>} the question, for its chat
 */
export async function begin(model, messages, settings) {
  const agent = await freeName(model, nameOf(firstWords(messages)));
  return newQuestion({ model, agent, messages, settings, begins: true });
}

/**
 * Fork an agent before one of its turns, to ask that turn's question again or another one.
 *
 * @param {string} model
 * @param {string} agent
 * @param {string} id of the turn
 * @param {Json[]} messages
 * @param {Record<string, number>} settings
 * @returns {Promise<Asked>} the question, for the fork's chat
 */
export async function branch(model, agent, id, messages, settings) {
  const kept = await tokensBefore(model, agent, id);
  const name = isUnnamed(agent) ? nameOf(firstWords(messages)) : agent.replace(/~\d+$/, '');
  const fork = await freeName(model, name, '~');
  const body = { new_agent_id: fork, keep_tokens: kept };
  await json('POST', agentPath(agent, 'fork'), { query: { model }, body });
  forgetAgents();
  return newQuestion({ model, agent: fork, messages, settings });
}

/**
 * @param {string} model
 * @param {string} agent
 * @param {string} id
 * @returns {Promise<number>}
 */
async function tokensBefore(model, agent, id) {
  for await (const { turns } of pages(agentPath(agent, 'turns'), { model, page_size: 1000 })) {
    const turn = turns.find((/** @type {Json} */ each) => idOf(each) === id);
    if (turn) return turn.first_token;
  }
  throw new Error('This turn is no longer in the agent’s memory.');
}

/** @param {Json[]} messages @returns {string} */
function firstWords(messages) {
  return messages.find(({ role }) => role === 'user')?.content ?? '';
}

/** Names of agents that are made by a chat. */
import { json, newTurn } from '../../gateway.js';

const WORDS = 6;
const LONGEST = 40;
const TRIED = 9;

/**
 * @param {string} text what is said first
 * @returns {string} its first words, as a name that needs no quotes in a shell
 */
export function nameOf(text) {
  const words = text.normalize('NFC').toLowerCase().replace(/['’]/g, '').match(/[\p{L}\p{M}\p{N}]+/gu) ?? ['chat'];
  let name = [...words[0]].slice(0, LONGEST).join('');
  for (const word of words.slice(1, WORDS)) {
    if (name.length + word.length >= LONGEST) break;
    name += `-${word}`;
  }
  return name;
}

/**
 * @param {string} model
 * @param {string} name
 * @param {string} [sign] before the number of a name that is taken
 * @returns {Promise<string>} a name that no agent of the model has
 */
export async function freeName(model, name, sign = '-') {
  for (let number = 1; number <= TRIED; number += 1) {
    const tried = number === 1 ? name : `${name}${sign}${number}`;
    const { agents } = await json('GET', 'v1/agents', { query: { model, agent: tried } });
    if (!agents.length) return tried;
  }
  return `${name}${sign}${newTurn().slice(0, 8)}`;
}

/** The words for an agent: its name, or the first words to one that nobody named. */
import { html, useEffect, useState } from '../../vendor/preact.js';
import { agentPath, json } from '../../gateway.js';
import { Name } from '../../parts.js';

/** @typedef {import('../../gateway.js').Json} Json */

const UNNAMED = /^conv-(?:(.+)-)?[0-9a-f]{32}$/s; // with the name that X-Agent-Name gave to conversations
const LONGEST = 80;

/** @type {Map<string, string>} */
const known = new Map();
let line = Promise.resolve(); // one after the other: a browser has few connections to a host

/** @param {string} agent */
export function isUnnamed(agent) {
  return UNNAMED.test(agent);
}

/** @param {{model: string, agent: string}} props */
export function Called({ model, agent }) {
  return isUnnamed(agent) ? html`<${FirstWords} model=${model} agent=${agent} />` : html`<${Name} text=${agent} />`;
}

/** @param {{model: string, agent: string}} props */
function FirstWords({ model, agent }) {
  const [words, setWords] = useState(known.get(`${model}\n${agent}`) ?? '');
  useEffect(() => {
    const stop = new AbortController();
    line = line.then(async () => {
      const found = stop.signal.aborted ? '' : await firstWords(model, agent, stop.signal);
      if (!stop.signal.aborted) setWords(found);
    }).catch(() => {}); // it keeps its id
    return () => stop.abort();
  }, [model, agent]);
  const given = UNNAMED.exec(agent)?.[1];
  return html`<span title=${agent}><${Name} text=${[given, words].filter(Boolean).join(': ') || agent} /></span>`;
}

/**
 * @param {string} model
 * @param {string} agent
 * @param {AbortSignal} signal
 * @returns {Promise<string>} empty where its first turn has no words of a user
 */
async function firstWords(model, agent, signal) {
  const place = `${model}\n${agent}`;
  let words = known.get(place);
  if (words === undefined) {
    const query = { model, include_text: true, page_size: 1 };
    const { turns } = await json('GET', agentPath(agent, 'turns'), { query, signal });
    const said = turns[0]?.messages.find((/** @type {Json} */ message) => message.role === 'user')?.content ?? '';
    words = [...said.replace(/\s+/g, ' ').trim().slice(0, 4 * LONGEST)].slice(0, LONGEST).join('');
    known.set(place, words);
  }
  return words;
}

/** Where an agent's memory can go back to, and what went on from it. */
import { html, useState } from '../../vendor/preact.js';
import { agentPath, pages } from '../../gateway.js';
import { ago, clock, counted, number } from '../../format.js';
import { linkTo } from '../../routing.js';
import { Loading, Name, Problem, useLoaded } from '../../parts.js';
import { Called } from '../agents/called.js';
import { allAgents, forgetAgents } from '../agents/loading.js';
import { Confirm } from './confirm.js';
import { deleteSnapshot, forkAt, restore } from './deeds.js';

/** @typedef {import('../../gateway.js').Json} Json */

const DEEPEST = 20;

/** @param {{agent: Json, onChanged: () => void}} props */
export function Branches({ agent, onChanged }) {
  const { key } = agent;
  const found = useLoaded(async (signal) => {
    /** @type {Json[]} */
    const snapshots = [];
    for await (const page of pages(agentPath(key.agent_id, 'snapshots'), { model: key.model_id }, signal)) {
      snapshots.push(...page.snapshots);
    }
    return snapshots;
  }, [agent]);
  const family = useLoaded(
    async (signal) => (await allAgents(signal)).filter((each) => each.key.model_id === key.model_id),
    [agent],
  );
  const forks = (family.value ?? []).filter((each) => each.forked_from?.agent_id === key.agent_id);
  const [deed, setDeed] = useState(/** @type {import('./deeds.js').Deed | null} */ (null));
  const versions = [agent.version?.version, ...(found.value ?? []).map((snapshot) => snapshot.version.version)];
  const placed = new Set(versions);
  /** @param {Json} at what has a version: its forks are shown once, where it is first shown */
  const forksOf = (at) => {
    const place = versions.indexOf(at.version?.version);
    const first = at === agent || found.value?.[place - 1] === at;
    return first ? forks.filter((fork) => fork.forked_from.version === at.version?.version) : [];
  };
  /** @param {unknown} _ @param {boolean} here */
  const done = (_, here) => {
    if (here) setDeed(null);
    forgetAgents();
    onChanged();
  };
  return html`
    ${found.error && html`<${Problem} error=${found.error} retry=${found.again} />`}
    ${!found.value && !found.error && html`<${Loading} what="Reading" />`}
    ${found.value && html`<ul class="tree">
      <${Forebears} agent=${agent} family=${family.value} />
      <li><strong>now</strong> <span class="quiet">version ${number(agent.version?.version ?? 0)},
        ${' '}${counted(agent.tokens, 'token')}</span><${Forks} agents=${forksOf(agent)} family=${family.value} /></li>
      ${found.value.map((snapshot) => html`<li key=${snapshot.name}>
        <${Name} text=${snapshot.name} />
        <span class="quiet">version ${number(snapshot.version.version)}, ${counted(snapshot.tokens, 'token')},
          ${' '}<time title=${clock(snapshot.create_time)}>${ago(snapshot.create_time)}</time>${
            snapshot.automatic ? ', automatic' : ''}</span>
        <span class="row">
          <button onClick=${() => setDeed(restore(agent, snapshot))}>Restore</button>
          <button onClick=${() => setDeed(forkAt(agent, snapshot))}>Fork here</button>
          <button onClick=${() => setDeed(deleteSnapshot(agent, snapshot))}>Delete</button></span>
        <${Forks} agents=${forksOf(snapshot)} family=${family.value} /></li>`)}
      ${forks.filter((fork) => !placed.has(fork.forked_from.version)).map((fork) => html`<li key=${fork.key.agent_id}>
        <span class="quiet">version ${number(fork.forked_from.version)}</span>
        <${Forks} agents=${[fork]} family=${family.value} /></li>`)}
    </ul>
    ${family.error && html`<${Problem} error=${family.error} retry=${family.again} />`}
    ${!found.value.length && html`<p class="quiet">No snapshots. One keeps a state by name; whatever drops something of
      a memory keeps what was there as an automatic one.</p>`}`}
    ${deed && html`<${Confirm} deed=${deed} onDone=${done} onClose=${() => setDeed(null)} />`}`;
}

/** What an agent was forked from, what that was forked from, and so on: the first one first.
 * @param {{agent: Json, family?: Json[]}} props */
function Forebears({ agent, family = [] }) {
  const sources = [];
  for (let at = agent; at?.forked_from?.agent_id && sources.length < DEEPEST;) {
    const from = at.forked_from;
    sources.unshift(from);
    at = family.find(({ key }) => key.agent_id === from.agent_id);
  }
  return sources.map((from) => html`<li class="quiet">forked from <a
    href=${linkTo(['agents', agent.key.model_id, from.agent_id, 'branches'])}><${Called}
    model=${agent.key.model_id} agent=${from.agent_id} /></a>,
    ${' '}its version ${number(from.version)}</li>`);
}

/** What went on from a state, and what went on from that.
 * @param {{agents: Json[], family?: Json[], depth?: number}} props */
function Forks({ agents, family = [], depth = 1 }) {
  if (!agents.length) return null;
  const below = (/** @type {string} */ name) =>
    (depth < DEEPEST ? family.filter(({ forked_from: from }) => from?.agent_id === name) : []);
  return html`<ul class="tree forks">${agents.map(({ key, tokens, forked_from: from }) => html`<li key=${key.agent_id}>
    <a href=${linkTo(['agents', key.model_id, key.agent_id, 'branches'])}><${Called}
      model=${key.model_id} agent=${key.agent_id} /></a>
    <span class="quiet">fork${depth > 1 ? ` of version ${number(from.version)}` : ''}, ${
      counted(tokens, 'token')}</span>
    <${Forks} agents=${below(key.agent_id)} family=${family} depth=${depth + 1} /></li>`)}</ul>`;
}

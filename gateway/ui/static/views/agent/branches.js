/** Where an agent's memory can go back to, and what went on from it. */
import { html, useState } from '../../vendor/preact.js';
import { agentPath, pages } from '../../gateway.js';
import { ago, clock, counted, number } from '../../format.js';
import { linkTo } from '../../routing.js';
import { Loading, Name, Problem, useLoaded } from '../../parts.js';
import { Confirm } from './confirm.js';
import { deleteSnapshot, forkAt, restore } from './deeds.js';

/** @typedef {import('../../gateway.js').Json} Json */

/** @param {{agent: Json, onChanged: () => void}} props */
export function Branches({ agent, onChanged }) {
  const state = `${agent.version?.uid} ${agent.version?.version}`;
  const { key } = agent;
  const found = useLoaded(async (signal) => {
    /** @type {Json[]} */
    const snapshots = [];
    for await (const page of pages(agentPath(key.agent_id, 'snapshots'), { model: key.model_id }, signal)) {
      snapshots.push(...page.snapshots);
    }
    return snapshots;
  }, [key.agent_id, key.model_id, state]);
  const forks = useLoaded(async (signal) => {
    /** @type {Json[]} */
    const made = [];
    for await (const page of pages('v1/agents', { model: key.model_id, page_size: 1000 }, signal)) {
      made.push(...page.agents.filter((/** @type {Json} */ each) => each.forked_from?.agent_id === key.agent_id));
    }
    return made;
  }, [key.agent_id, key.model_id, state]);
  const [deed, setDeed] = useState(/** @type {import('./deeds.js').Deed | null} */ (null));
  const versions = [agent.version?.version, ...(found.value ?? []).map((snapshot) => snapshot.version.version)];
  const placed = new Set(versions);
  /** @param {Json} at what has a version: its forks are shown once, where it is first shown */
  const forksOf = (at) => {
    const place = versions.indexOf(at.version?.version);
    const first = at === agent || found.value?.[place - 1] === at;
    return first ? (forks.value ?? []).filter((fork) => fork.forked_from.version === at.version?.version) : [];
  };
  const done = () => {
    setDeed(null);
    found.again();
    onChanged();
  };
  return html`
    ${found.error && html`<${Problem} error=${found.error} retry=${found.again} />`}
    ${!found.value && !found.error && html`<${Loading} what="Reading" />`}
    ${found.value && html`<ul class="tree">
      ${agent.forked_from?.agent_id && html`<li class="quiet">forked from <a
        href=${linkTo(['agents', key.model_id, agent.forked_from.agent_id])}><${Name} text=${agent.forked_from.agent_id} /></a>,
        ${' '}its version ${number(agent.forked_from.version)}</li>`}
      <li><strong>now</strong> <span class="quiet">version ${number(agent.version?.version ?? 0)},
        ${' '}${counted(agent.tokens, 'token')}</span><${Forks} agents=${forksOf(agent)} /></li>
      ${found.value.map((snapshot) => html`<li key=${snapshot.name}>
        <${Name} text=${snapshot.name} />
        <span class="quiet">version ${number(snapshot.version.version)}, ${counted(snapshot.tokens, 'token')},
          ${' '}<time title=${clock(snapshot.create_time)}>${ago(snapshot.create_time)}</time>${snapshot.automatic ? ', automatic' : ''}</span>
        <span class="row">
          <button onClick=${() => setDeed(restore(agent, snapshot))}>Restore</button>
          <button onClick=${() => setDeed(forkAt(agent, snapshot))}>Fork here</button>
          <button onClick=${() => setDeed(deleteSnapshot(agent, snapshot))}>Delete</button></span>
        <${Forks} agents=${forksOf(snapshot)} /></li>`)}
      ${forks.value?.filter((fork) => !placed.has(fork.forked_from.version)).map((fork) => html`<li key=${fork.key.agent_id}>
        <span class="quiet">version ${number(fork.forked_from.version)}</span><${Forks} agents=${[fork]} /></li>`)}
    </ul>
    ${forks.error && html`<${Problem} error=${forks.error} retry=${forks.again} />`}
    ${!found.value.length && html`<p class="quiet">No snapshots. One keeps a state by name; whatever drops something of a
      memory keeps what was there as an automatic one.</p>`}`}
    ${deed && html`<${Confirm} deed=${deed} onDone=${done} onClose=${() => setDeed(null)} />`}`;
}

/** What went on from a state.
 * @param {{agents: Json[]}} props */
function Forks({ agents }) {
  if (!agents.length) return null;
  return html`<ul class="tree forks">${agents.map(({ key, tokens }) => html`<li key=${key.agent_id}>
    <a href=${linkTo(['agents', key.model_id, key.agent_id, 'branches'])}><${Name} text=${key.agent_id} /></a>
    <span class="quiet">fork, ${counted(tokens, 'token')}</span></li>`)}</ul>`;
}

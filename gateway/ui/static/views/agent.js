/** One agent: what it is, its memory, its branches, and what a prompt would find in it. */
import { html } from '../vendor/preact.js';
import { agentPath, json } from '../gateway.js';
import { ago, bytes, clock, counted, duration, number } from '../format.js';
import { linkTo } from '../routing.js';
import { Loading, Problem, Tier, useLoaded } from '../parts.js';
import { Actions } from './agent/actions.js';
import { Branches } from './agent/branches.js';
import { Memory } from './agent/memory.js';
import { Probe } from './agent/probe.js';
import { Called } from './agents/called.js';
import { forgetAgents } from './agents/loading.js';

/** @typedef {import('../gateway.js').Json} Json */

const TABS = /** @type {const} */ ([
  ['', 'Memory', Memory], ['branches', 'Branches', Branches], ['probe', 'Probe', Probe],
]);

/** @param {{model: string, agent: string, place: import('../routing.js').Place}} props */
export function OneAgent({ model, agent, place }) {
  const found = useLoaded(
    async (signal) => (await json('GET', agentPath(agent), { query: { model }, signal })).agent,
    [model, agent],
  );
  const refresh = () => {
    forgetAgents();
    found.again();
  };
  const [, title, Tab] = TABS.find(([name]) => name === (place.parts[2] ?? '')) ?? TABS[0];
  return html`<section>
    <div class="row head">
      <p class="crumbs"><a href=${linkTo(['agents'])}>Agents</a> ›</p>
      <h1><${Called} model=${model} agent=${agent} /></h1> <span class="quiet">on ${model}</span>
      <span class="push row"><button onClick=${refresh}>Refresh</button>
        <a href=${linkTo(['talk', model, agent])}>Talk</a>
        ${found.value && html`<${Actions} agent=${found.value} onChanged=${found.again} />`}</span>
    </div>
    ${found.error && html`<${Problem} error=${found.error} retry=${found.again} />`}
    ${!found.value && !found.error && html`<${Loading} what="Looking for it" />`}
    ${found.value && html`
      <${Facts} agent=${found.value} />
      <nav class="tabs" aria-label="Of this agent">${TABS.map(([name, each]) => html`
        <a href=${linkTo(['agents', model, agent, ...(name ? [name] : [])])}
          aria-current=${each === title ? 'page' : undefined}>${each}</a>`)}</nav>
      <${Tab} key=${title} agent=${found.value} onChanged=${found.again} />`}
  </section>`;
}

/** @param {{agent: Json}} props */
function Facts({ agent }) {
  const idle = [
    agent.ttl && `KV after ${duration(agent.ttl)} idle`,
    agent.delete_after && `deleted after ${duration(agent.delete_after)} idle`,
  ];
  const left = agent.context_remaining;
  const facts = [
    ['Tier', html`<${Tier} tier=${agent.tier} />`],
    ['Memory',
      `${counted(agent.tokens, 'token')} in ${counted(agent.turns, 'turn')}, ${bytes(agent.text_bytes)} of text`],
    ['Disk usage',
      `${number(agent.warm_tokens)} tokens, ${bytes(agent.warm_bytes)} in ${counted(agent.blocks, 'block')}`],
    ['Context left', left == null ? 'the model is not loaded' : counted(left, 'token')],
    ['Version', number(agent.version?.version ?? 0)],
    ['Last use', html`<time title=${clock(agent.update_time)}>${ago(agent.update_time)}</time>`],
    ['Kept', agent.pinned ? 'pinned: never evicted to make room' : 'until room is needed'],
    ['Expires', idle.filter(Boolean).join(', ') || 'never'],
    ['Full context', agent.context_policy ?? 'trim'],
  ];
  return html`<dl class="facts">${facts.map(([name, value]) => html`<div>
    <dt>${name}</dt><dd>${value}</dd></div>`)}</dl>`;
}

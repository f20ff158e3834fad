/** Talk: a chat with an agent, or with two of them side by side. */
import { html, useEffect, useState } from '../vendor/preact.js';
import { json } from '../gateway.js';
import { linkTo } from '../routing.js';
import { Loading, Name, Problem, useLoaded } from '../parts.js';
import { allAgents } from './agents/loading.js';
import { Pane } from './talk/pane.js';

/** @param {{place: import('../routing.js').Place}} props */
export function Talk({ place }) {
  const [model, agent] = place.parts;
  const beside = place.query.get('beside');
  if (!model || !agent) return html`<${Choice} />`;
  /** @param {string} fork */
  const forked = (fork) => { location.hash = linkTo(['talk', model, agent], { beside: fork }); };
  return html`<h1 class="unseen">Talk</h1><div class=${beside ? 'panes two' : 'panes'}>
    <${Pane} key=${`${model}\n${agent}`} model=${model} agent=${agent} onFork=${forked} />
    ${beside && html`<${Pane} key=${`${model}\n${beside}`} model=${model} agent=${beside}
      onClose=${() => { location.hash = linkTo(['talk', model, agent]); }} />`}
  </div>`;
}

/** Whom to talk to. */
function Choice() {
  const models = useLoaded((signal) => json('GET', 'v1/models', { signal }), []);
  const recent = useLoaded(allAgents, []);
  const [agent, setAgent] = useState('');
  const [model, setModel] = useState('');
  const names = /** @type {string[]} */ (models.value?.data.map((/** @type {{id: string}} */ each) => each.id) ?? []);
  useEffect(() => {
    if (!model && names.length) setModel(names[0]);
  }, [names.length]);
  /** @param {Event} event */
  const begin = (event) => {
    event.preventDefault();
    if (agent && model) location.hash = linkTo(['talk', model, agent]);
  };
  const agents = [...(recent.value ?? [])]
    .sort((one, other) => (other.update_time ?? '').localeCompare(one.update_time ?? ''))
    .slice(0, 12);
  return html`<section class="narrow">
    <h1>Talk</h1>
    <p>To an agent that is there, or to a new one: its first turn makes it.</p>
    ${models.error && html`<${Problem} error=${models.error} retry=${models.again} />`}
    <form class="fields" onSubmit=${begin}>
      <label>Agent <input required maxlength="256" autocomplete="off" spellcheck=${false} value=${agent} dir="auto"
        onInput=${(/** @type {{target: HTMLInputElement}} */ e) => setAgent(e.target.value)} /></label>
      <label>Model <select value=${model}
        onChange=${(/** @type {{target: HTMLSelectElement}} */ e) => setModel(e.target.value)}>
        ${names.map((name) => html`<option value=${name} selected=${name === model}>${name}</option>`)}</select></label>
      <div><button class="primary" disabled=${!model}>Talk</button></div>
    </form>
    ${recent.error && html`<${Problem} error=${recent.error} retry=${recent.again} />`}
    ${!recent.value && !recent.error && html`<${Loading} what="Looking for agents" />`}
    ${agents.length > 0 && html`<h2>Last used</h2><ul class="plain">
      ${agents.map(({ key }) => html`<li><a href=${linkTo(['talk', key.model_id, key.agent_id])}>
        <${Name} text=${key.agent_id} /></a> <span class="quiet">on ${key.model_id}</span></li>`)}</ul>`}
  </section>`;
}

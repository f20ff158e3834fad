/** Talk: a new chat, a chat with an agent, or with two of them side by side. */
import { html, useState } from '../vendor/preact.js';
import { ago } from '../format.js';
import { linkTo } from '../routing.js';
import { Loading, Problem, useHere, useLoaded } from '../parts.js';
import { Called } from './agents/called.js';
import { allAgents } from './agents/loading.js';
import { defaultModel, loadingWords, useModels } from './models/registry.js';
import { Composer } from './talk/composer.js';
import { begin, open } from './talk/opening.js';
import { Pane } from './talk/pane.js';
import { settings } from './talk/settings.js';

/** @typedef {import('../gateway.js').Json} Json */

const RECENT = 12;

/** @param {{place: import('../routing.js').Place}} props */
export function Talk({ place }) {
  const [model, agent] = place.parts;
  const beside = place.query.get('beside');
  if (!model || !agent) return html`<${NewChat} asked=${model} />`;
  /** @param {string} one @param {string | null} [other] */
  const to = (one, other) => linkTo(['talk', model, one], other ? { beside: other } : {});
  /** @param {string} address */
  const go = (address) => { location.hash = address; };
  return html`<h1 class="unseen">Talk</h1><div class=${beside ? 'panes two' : 'panes'}>
    <${Pane} key=${`${model}\n${agent}`} model=${model} agent=${agent}
      to=${(/** @type {string} */ name) => to(name, beside)}
      onFork=${(/** @type {string} */ fork) => go(to(agent, fork))} />
    ${beside && html`<${Pane} key=${`beside\n${model}\n${beside}`} model=${model} agent=${beside}
      to=${(/** @type {string} */ name) => to(agent, name)} onClose=${() => go(to(agent))} />`}
  </div>`;
}

/** @param {{asked?: string}} props `asked`: the model that the address names */
function NewChat({ asked = '' }) {
  const { models, error } = useModels();
  const [chosen, setChosen] = useState(asked);
  const [problem, setProblem] = useState(/** @type {unknown} */ (null));
  const [busy, setBusy] = useState(false);
  const here = useHere();
  const model = models?.find((each) => each.model_id === chosen) ?? models?.[0];
  /** @param {Json[]} messages */
  const say = async (messages) => {
    setBusy(true);
    setProblem(null);
    try {
      const name = model?.model_id ?? await defaultModel();
      const asked = await begin(name, messages, settings());
      if (here.current) open(asked, linkTo(['talk', name, asked.agent]));
      return true;
    } catch (failure) {
      setProblem(failure);
      setBusy(false);
      return false;
    }
  };
  return html`<section class="narrow">
    <h1>New chat</h1>
    ${error && html`<${Problem} error=${error} />`}
    ${problem && html`<${Problem} error=${problem} />`}
    <${Composer} running=${busy} begins=${true} focused=${true} model=${model} onSay=${say}>
      <label>Model <select value=${model?.model_id ?? ''}
        onChange=${(/** @type {{target: HTMLSelectElement}} */ e) => setChosen(e.target.value)}>
        ${models?.map(({ model_id: name }) => html`<option value=${name} selected=${name === model?.model_id}>${
          name}</option>`)}</select></label>
    </${Composer}>
    <p class="quiet" role="status">${model?.state === 'loading' && `${loadingWords(model)}…`}</p>
    ${model?.error && html`<p class="problem" dir="auto">${model.error}</p>`}
    <${Recent} />
  </section>`;
}

function Recent() {
  const { value, error, again } = useLoaded(allAgents, []);
  const agents = [...(value ?? [])]
    .sort((one, other) => (other.update_time ?? '').localeCompare(one.update_time ?? ''))
    .slice(0, RECENT);
  return html`${error && html`<${Problem} error=${error} retry=${again} />`}
    ${!value && !error && html`<${Loading} what="Looking for agents" />`}
    ${agents.length > 0 && html`<h2>Recent chats</h2><ul class="plain recent">
      ${agents.map(({ key, update_time: time }) => html`<li key=${`${key.model_id}\n${key.agent_id}`}>
        <a href=${linkTo(['talk', key.model_id, key.agent_id])}><${Called} model=${key.model_id}
          agent=${key.agent_id} /></a>
        ${' '}<span class="quiet">on <bdi>${key.model_id}</bdi>, ${ago(time)}</span></li>`)}</ul>`}`;
}

/** Models on the hub: a search, whether each fits this machine, and its download. */
import { html, useState } from '../../vendor/preact.js';
import { json } from '../../gateway.js';
import { bytes, counted, number } from '../../format.js';
import { linkTo } from '../../routing.js';
import { Loading, Problem } from '../../parts.js';
import { Progress, useSteps } from './progress.js';
import { progressWords } from './registry.js';

/** @typedef {import('../../gateway.js').Json} Json */

/** @param {{registered: Set<string>, onChanged: () => void}} props `registered`: names of models */
export function Hub({ registered, onChanged }) {
  const [query, setQuery] = useState('');
  const [state, setState] = useState(/** @type {{models?: Json[], error?: unknown, busy?: boolean}} */ ({}));
  /** @param {Event} [event] */
  const search = async (event) => {
    event?.preventDefault();
    setState({ busy: true });
    try {
      setState({ models: (await json('GET', 'v1/hub/models', { query: { query } })).models });
    } catch (error) {
      setState({ error });
    }
  };
  return html`<section aria-label="On the hub">
    <form class="row search" role="search" onSubmit=${search}>
      <label><span class="unseen">Search the hub</span><input type="search" value=${query}
        placeholder="Search the hub: llama 3b"
        onInput=${(/** @type {{target: HTMLInputElement}} */ e) => setQuery(e.target.value)}
        /></label>
      <button class="primary" disabled=${state.busy}>Search</button>
    </form>
    ${state.busy && html`<${Loading} what="Asking the hub" />`}
    ${state.error && html`<${Problem} error=${state.error} retry=${() => search()} />`}
    ${state.models && !state.models.length && html`<p role="status">The hub has no such model; take fewer words.</p>`}
    ${state.models?.map((model) => html`<${OnHub} key=${model.source} model=${model}
      registered=${registered.has(model.source)} onChanged=${onChanged} />`)}
  </section>`;
}

/** @param {{model: Json, registered: boolean, onChanged: () => void}} props */
function OnHub({ model, registered, onChanged }) {
  const { source, missing_bytes: missing } = model;
  const pull = useSteps(source, 'pull', onChanged);
  const here = pull.ended || (registered && model.total_bytes > 0 && !missing);
  const facts = [
    model.total_bytes && `${bytes(model.total_bytes)}${missing ? '' : ', downloaded'}`,
    fit(model),
    model.gated && 'gated: needs HF_TOKEN',
  ];
  return html`<article class="model">
    <div class="row">
      <h2><bdi>${source}</bdi></h2>
      <span class="push row">
        ${(here || registered) && html`<span class="quiet">${here ? 'downloaded' : 'registered'}</span>
          <a href=${linkTo(['talk', source])}>Talk</a>`}
        ${!here && html`<button disabled=${pull.running || model.fits === false} onClick=${pull.begin}>Pull</button>`}
      </span>
    </div>
    <p class="quiet">${facts.filter(Boolean).join(', ')}</p>
    ${model.problem && html`<p class="problem mild" dir="auto">${model.problem}</p>`}
    ${pull.error && html`<${Problem} error=${pull.error} retry=${pull.begin} />`}
    ${pull.running && html`<${Progress} words=${`downloading ${source}${progressWords(pull.progress)}`}
      share=${pull.progress?.share} onStop=${pull.stop} stop="Stop" />`}
  </article>`;
}

/** @param {Json} model @returns {string} */
function fit({ fits, fits_now: now, weight_bytes: weights, activation_bytes: computing, agents_4k: agents }) {
  if (fits == null) return 'whether it fits is not known';
  if (!fits) return weights ? 'does not fit this machine' : 'cannot run';
  const needs = `${bytes(weights + computing)} of memory, and room for ${counted(agents, 'agent')} of ${
    number(4096)} tokens`;
  return `${now ? 'fits' : 'fits, but other processes have that memory now'}: ${needs}`;
}

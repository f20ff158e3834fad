/** Models: those that are registered, and those that could be. */
import { html } from '../vendor/preact.js';
import { Loading, Problem } from '../parts.js';
import { Hub } from './models/hub.js';
import { Model } from './models/model.js';
import { useModels } from './models/registry.js';

/** @typedef {import('../gateway.js').Json} Json */

export function Models() {
  const { models, error, again } = useModels();
  const registered = new Set(models?.map(({ model_id: name }) => name));
  return html`<section>
    <div class="row head"><h1>Models</h1></div>
    <${Hub} registered=${registered} onChanged=${again} />
    <h2>On this machine</h2>
    ${error && html`<${Problem} error=${error} retry=${again} />`}
    ${models && error && html`<p class="quiet">It was like this before:</p>`}
    ${!models && !error && html`<${Loading} what="Looking" />`}
    ${models?.map((model) => html`<${Model} key=${model.model_id} model=${model} onChanged=${again} />`)}
  </section>`;
}

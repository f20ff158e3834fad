/** What a prompt would find in an agent's memory, and why no more. It changes nothing. */
import { html, useRef, useState } from '../../vendor/preact.js';
import { agentPath, json } from '../../gateway.js';
import { bytes, hit, matched, missed, number, total } from '../../format.js';
import { Problem, Tier } from '../../parts.js';

/** @typedef {import('../../gateway.js').Json} Json */

const INPUTS = /** @type {Record<string, [string, (text: string) => Json]>} */ ({
  append: [
    'Something new to say',
    (text) => ({ append: { messages: { messages: [{ role: 'user', content: text }] } } }),
  ],
  prompt: ['A whole prompt, with its markup', (text) => ({ prompt: text })],
  messages: ['A whole chat, as JSON', (text) => ({ messages: { messages: JSON.parse(text) } })],
});

/** @param {{agent: Json}} props */
export function Probe({ agent }) {
  const [kind, setKind] = useState('append');
  const [text, setText] = useState('');
  const [result, setResult] = useState(/** @type {{found?: Json, error?: unknown}} */ ({}));
  const latest = useRef(0); // answers of earlier probes may come later
  /** @param {Event} event */
  const probe = async (event) => {
    event.preventDefault();
    const probed = ++latest.current;
    /** @param {{found?: Json, error?: unknown}} told */
    const tell = (told) => probed === latest.current && setResult(told);
    try {
      const body = INPUTS[kind][1](text);
      const { key } = agent;
      const query = { model: key.model_id };
      tell({ found: await json('POST', agentPath(key.agent_id, 'probe'), { query, body }) });
    } catch (error) {
      tell({ error: error instanceof SyntaxError ? new Error(`This is no JSON: ${error.message}`) : error });
    }
  };
  return html`<form class="fields narrow" onSubmit=${probe}>
    <p>How much of a prompt the agent need not compute. Nothing is run, and nothing is changed.</p>
    <label>It is <select value=${kind}
      onChange=${(/** @type {{target: HTMLSelectElement}} */ e) => setKind(e.target.value)}>
      ${Object.entries(INPUTS).map(([name, [title]]) => html`<option value=${name}
        selected=${name === kind}>${title}</option>`)}
    </select></label>
    <label>Prompt <textarea rows="8" required dir="auto" value=${text}
      onInput=${(/** @type {{target: HTMLTextAreaElement}} */ e) => setText(e.target.value)}></textarea></label>
    <div><button class="primary">Probe</button></div>
    ${result.error && html`<${Problem} error=${result.error} />`}
    ${result.found && html`<${Found} cache=${result.found.cache} trim=${result.found.context_trim} />`}
  </form>`;
}

/** @param {string} tier */
function from(tier) {
  return tier === 'none' ? 'computed' : tier;
}

/** @param {{cache: Json, trim: Json}} props */
function Found({ cache, trim }) {
  const reused = total(cache.cached);
  const parts = /** @type {[string, number][]} */ (
    [...Object.entries(cache.cached), ['none', cache.prompt_tokens - reused]]);
  return html`<section class="found" aria-live="polite">
    <p><span class="match">${cache.match}</span> ${matched(cache.match)}: <strong>${hit(cache)}</strong></p>
    <div class="bar-of" role="img" aria-label=${parts.map(([tier, tokens]) => `${from(tier)} ${tokens}`).join(', ')}>
      ${parts.filter(([, tokens]) => tokens > 0).map(([tier, tokens]) => html`<span class=${`tier ${tier}`}
        style=${{ flexGrow: tokens }}></span>`)}</div>
    <ul class="plain">${parts.map(([tier, tokens]) => html`<li>
      ${tier === 'none' ? 'computed' : html`<${Tier} tier=${tier} />`} ${number(tokens)} tokens</li>`)}</ul>
    ${cache.miss_reason && html`<p>No more, because ${missed(cache.miss_reason)}.</p>`}
    ${cache.load_bytes > 0 && html`<p>${bytes(cache.load_bytes)} of KV would be read.</p>`}
    ${cache.snapshot_version > 0 && html`<p>It would go on from the state of version
      ${' '}${number(cache.snapshot_version)}.</p>`}
    ${trim && html`<p>${number(trim.dropped_turns)} turns would leave the memory, for the context is full.</p>`}
  </section>`;
}

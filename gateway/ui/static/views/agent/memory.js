/** An agent's memory as text, turn by turn: what each reused and took, and where the KV of each block is. */
import { html, useEffect, useMemo, useRef, useState } from '../../vendor/preact.js';
import { agentPath, json } from '../../gateway.js';
import { clock, number } from '../../format.js';
import { Loading, Problem, useLoaded } from '../../parts.js';
import { BlockStrip, Coloured } from './coloured.js';
import { PastTurn } from '../talk/turns.js';

/** @typedef {import('../../gateway.js').Json} Json */

const PAGE = 20;

/** @type {Json[]} */
const NOTHING = [];

/** @param {{agent: Json}} props */
export function Memory({ agent }) {
  const { key, version } = agent;
  const { turns, more, error, again } = useTurns(agent);
  const [raw, setRaw] = useState(false);
  const blocks = useLoaded(
    async (signal) => {
      const query = { model: key.model_id };
      return (await json('GET', agentPath(key.agent_id, 'blocks'), { query, signal })).blocks;
    },
    [key.model_id, key.agent_id, version?.uid, version?.version, agent.tier, agent.warm_bytes],
  );
  if (!agent.tokens) return html`<p class="quiet">It has no memory.</p>`;
  return html`
    ${blocks.error && html`<${Problem} error=${blocks.error} retry=${blocks.again} />`}
    ${blocks.value && html`<${BlockStrip} blocks=${blocks.value} />`}
    <label class="row raw"><input type="checkbox" checked=${raw}
      onChange=${(/** @type {{target: HTMLInputElement}} */ e) => setRaw(e.target.checked)} />
      As the model sees it, coloured by where the KV is</label>
    <ol class="plain turns">${turns.map((turn) => html`<${Remembered} key=${turn.first_token} turn=${turn} raw=${raw}
      model=${key.model_id} blocks=${blocks.value ?? NOTHING} />`)}</ol>
    ${error && html`<${Problem} error=${error} retry=${again} />`}
    ${more && !error && html`<${More} onSeen=${again} />`}`;
}

/** One turn; that others come does not draw it again.
 * @param {{turn: Json, model: string, raw: boolean, blocks: Json[]}} props `raw`: as the model sees it */
function Remembered({ turn, model, raw, blocks }) {
  return useMemo(() => html`<li>
    <div class="row where"><span>tokens ${number(turn.first_token)}–${number(turn.first_token + turn.tokens)}</span>
      <span>version ${number(turn.version)}</span>
      ${turn.create_time && html`<time>${clock(turn.create_time)}</time>`}
      ${turn.cut && html`<span>its end was dropped</span>`}</div>
    ${raw ? html`<${Coloured} text=${turn.bytes} at=${turn.at} blocks=${blocks} />`
      : html`<${PastTurn} turn=${turn} model=${model} />`}
  </li>`, [turn, raw, raw && blocks]);
}

/** The end of what is loaded: when it is scrolled to, more is.
 * @param {{onSeen: () => void}} props */
function More({ onSeen }) {
  const end = useRef(/** @type {HTMLElement | null} */ (null));
  useEffect(() => {
    const seen = new IntersectionObserver(([entry]) => entry.isIntersecting && onSeen(), { rootMargin: '400px' });
    seen.observe(/** @type {HTMLElement} */ (end.current));
    return () => seen.disconnect();
  });
  return html`<div ref=${end}><${Loading} what="Reading on" /></div>`;
}

/**
 * Turns, read page by page; all anew when the agent has another state.
 *
 * @param {Json} agent
 */
function useTurns({ key, version }) {
  const state = `${version?.uid} ${version?.version}`;
  const nothing = { turns: /** @type {Json[]} */ ([]), token: '', more: true, error: /** @type {unknown} */ (null) };
  const [read, setRead] = useState(nothing);
  const busy = useRef(/** @type {AbortController | null} */ (null));
  /** @param {typeof nothing} from */
  const load = (from) => {
    const stop = new AbortController();
    busy.current = stop;
    const query = { model: key.model_id, include_text: true, page_size: PAGE, page_token: from.token };
    json('GET', agentPath(key.agent_id, 'turns'), { query, signal: stop.signal }).then(
      ({ turns, next_page_token: token }) => {
        busy.current = null;
        setRead({ turns: placed(from.turns, turns), token, more: token !== '', error: null });
      },
      (error) => {
        if (stop.signal.aborted) return;
        busy.current = null;
        setRead({ ...from, error });
      },
    );
  };
  useEffect(() => {
    setRead(nothing);
    load(nothing);
    return () => {
      busy.current?.abort();
      busy.current = null;
    };
  }, [state]);
  return { ...read, again: () => { if (!busy.current) load({ ...read, error: null }); } };
}

/**
 * @param {Json[]} before
 * @param {Json[]} turns that come next
 * @returns {Json[]} all, with the bytes of their texts and where they are in the text of the ledger
 */
function placed(before, turns) {
  const last = before[before.length - 1];
  let at = last ? last.at + last.bytes.length : 0;
  const added = turns.map((turn) => {
    const bytes = Uint8Array.from(atob(turn.text), (letter) => letter.charCodeAt(0));
    const place = at;
    at += bytes.length;
    return { ...turn, bytes, at: place };
  });
  return [...before, ...added];
}

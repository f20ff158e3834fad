/** An agent's memory as text, turn by turn: what each reused and took, and where the KV of each block is. */
import { html, useEffect, useRef, useState } from '../../vendor/preact.js';
import { agentPath, json } from '../../gateway.js';
import { clock, number } from '../../format.js';
import { Loading, LongText, Problem } from '../../parts.js';
import { textOf } from '../talk/history.js';
import { PastTurn } from '../talk/turns.js';

/** @typedef {import('../../gateway.js').Json} Json */

const PAGE = 20;

/** @param {{agent: Json}} props */
export function Memory({ agent }) {
  const { turns, more, error, again } = useTurns(agent);
  const [raw, setRaw] = useState(false);
  if (!agent.turns) return html`<p class="quiet">It has no turns.</p>`;
  return html`
    <label class="row raw"><input type="checkbox" checked=${raw}
      onChange=${(/** @type {{target: HTMLInputElement}} */ e) => setRaw(e.target.checked)} />
      As the model sees it, with the markup of its template</label>
    <ol class="plain turns">${turns.map((turn) => html`<li key=${turn.first_token}>
      <div class="row where"><span>tokens ${number(turn.first_token)}–${number(turn.first_token + turn.tokens)}</span>
        <span>version ${number(turn.version)}</span>
        ${turn.create_time && html`<time>${clock(turn.create_time)}</time>`}
        ${turn.cut && html`<span>its end was dropped</span>`}</div>
      ${raw ? html`<div class="said markup"><${LongText} text=${textOf(turn.text)} /></div>` : html`<${PastTurn} turn=${turn} />`}
    </li>`)}</ol>
    ${error && html`<${Problem} error=${error} retry=${again} />`}
    ${more && !error && html`<${More} onSeen=${again} />`}`;
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
        setRead({ turns: [...from.turns, ...turns], token, more: token !== '', error: null });
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

/** One chat: what was said, what is being said, and what to say next. */
import { html, useEffect, useRef, useState } from '../../vendor/preact.js';
import { useFollowed } from '../../followed.js';
import { counted } from '../../format.js';
import { linkTo } from '../../routing.js';
import { Loading, Name, Problem, useLoaded } from '../../parts.js';
import { Confirm } from '../agent/confirm.js';
import { fork } from '../agent/deeds.js';
import { forgetAgents } from '../agents/loading.js';
import { Composer } from './composer.js';
import { SHOWN, history } from './history.js';
import { PastTurn, PresentTurn } from './turns.js';
import { newQuestion, noAnswer, run } from './turn.js';

/** @typedef {{asked: import('./turn.js').Asked, answer: import('./turn.js').Answer}} Exchange */

/**
 * @param {{model: string, agent: string, onFork?: (fork: string) => void, onClose?: () => void}} props `onFork` where
 *   there is room for another chat, `onClose` where this is that one
 */
export function Pane({ model, agent, onFork, onClose }) {
  const past = useLoaded((signal) => history(model, agent, signal), [model, agent]);
  const [present, setPresent] = useState(/** @type {Exchange[]} */ ([]));
  const [forking, setForking] = useState(/** @type {import('../agent/deeds.js').Deed | null} */ (null));
  const stop = useRef(/** @type {AbortController | null} */ (null));
  const log = useFollowed([past.value, present]);
  const running = present.length > 0 && present[present.length - 1].answer.state === 'running';
  useEffect(() => () => stop.current?.abort(), []);
  const here = new Set(present.map(({ asked }) => asked.name)); // the memory has them, too, if it was read late
  const before = past.value?.turns.filter((turn) => !here.has(turn.request_id));

  /** @param {import('./turn.js').Asked} asked */
  const begin = (asked) => {
    const ending = new AbortController();
    stop.current = ending;
    setPresent((now) => [...now.filter((each) => each.asked !== asked), { asked, answer: noAnswer() }]);
    run(asked, ending.signal, (answer) => {
      if (answer.state !== 'running') forgetAgents(); // it is a new one, or has other tokens now
      setPresent((now) => now.map((each) => (each.asked === asked ? { asked, answer } : each)));
    });
  };
  /** @param {import('./turn.js').Asked} asked */
  const forget = (asked) => setPresent((now) => now.filter((each) => each.asked !== asked));
  const askForFork = () => setForking(fork({ key: { model_id: model, agent_id: agent } }));
  /** @param {Record<string, string>} given @param {boolean} here */
  const forked = (given, here) => {
    forgetAgents();
    if (!here) return; // its reader has closed the question, and stays where he is
    setForking(null);
    onFork?.(given.new_agent_id);
  };

  return html`<section class="pane" aria-label=${`Chat with ${agent}`}>
    <header class="row">
      <h2><${Name} text=${agent} /></h2><span class="quiet">on ${model}</span>
      <span class="push row">
        <a href=${linkTo(['agents', model, agent])}>Memory</a>
        ${onFork && html`<button onClick=${askForFork} disabled=${running}>Fork beside</button>`}
        ${onClose && html`<button onClick=${onClose}>Close</button>`}
      </span>
    </header>
    <div class="log" ref=${log} role="log" aria-busy=${running} tabindex="0" aria-label="What was said">
      ${past.error && html`<${Problem} error=${past.error} retry=${past.again} />`}
      ${!past.value && !past.error && html`<${Loading} what="Reading the memory" />`}
      ${past.value && past.value.left > 0 && html`<p class="quiet">${counted(past.value.left, 'turn')} before these
        ${SHOWN} are in <a href=${linkTo(['agents', model, agent])}>its memory</a>.</p>`}
      ${before && !before.length && !present.length && html`<p class="quiet">Nothing was said yet.</p>`}
      ${before?.map((turn) => html`<${PastTurn} key=${turn.version} turn=${turn} />`)}
      ${present.map(({ asked, answer }) => html`<${PresentTurn} key=${asked.name} asked=${asked} answer=${answer}
        onRetry=${running ? undefined : () => begin(asked)} onForget=${() => forget(asked)} />`)}
    </div>
    <${Composer} running=${running} onStop=${() => stop.current?.abort()}
      onSay=${(/** @type {string} */ text, /** @type {Record<string, number>} */ settings) =>
        begin(newQuestion({ model, agent, text, settings }))} />
    ${forking && html`<${Confirm} deed=${forking} onDone=${forked} onClose=${() => setForking(null)} />`}
  </section>`;
}

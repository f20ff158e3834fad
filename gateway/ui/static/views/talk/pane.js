/** One chat: what was said, what is being said, and what to say next. */
import { html, useEffect, useMemo, useRef, useState } from '../../vendor/preact.js';
import { useFollowed } from '../../followed.js';
import { counted } from '../../format.js';
import { linkTo } from '../../routing.js';
import { Loading, Problem, useHere, useLoaded } from '../../parts.js';
import { Confirm } from '../agent/confirm.js';
import { fork } from '../agent/deeds.js';
import { Called } from '../agents/called.js';
import { forgetAgents } from '../agents/loading.js';
import { loadingWords, useModels } from '../models/registry.js';
import { idOf, sidesOf, usePaths } from './branches.js';
import { Composer } from './composer.js';
import { SHOWN, history } from './history.js';
import { learn } from './memory.js';
import { branch, open, taken } from './opening.js';
import { isGreedy, settings } from './settings.js';
import { Tools } from './tools.js';
import { PastTurn, PresentTurn } from './turns.js';
import { newQuestion, noAnswer, run } from './turn.js';

/** @typedef {import('../../gateway.js').Json} Json */
/** @typedef {{asked: import('./turn.js').Asked, answer: import('./turn.js').Answer}} Exchange */

/**
 * @param {{model: string, agent: string, to: (agent: string) => string, onFork?: (fork: string) => void,
 *   onClose?: () => void}} props `to`: the address where another agent takes this one's place; `onFork` where there is
 *   room for another chat, `onClose` where this is that one
 */
export function Pane({ model, agent, to, onFork, onClose }) {
  const past = useLoaded((signal) => history(model, agent, signal), [model, agent]);
  const { present, running, begin, stop, forget } = usePresent(model, agent);
  const [forking, setForking] = useState(/** @type {import('../agent/deeds.js').Deed | null} */ (null));
  const [asking, setAsking] = useState(false);
  const [problem, setProblem] = useState(/** @type {unknown} */ (null));
  const log = useFollowed([past.value, present]);
  const here = useHere();
  const waits = running && !present[present.length - 1].answer.started;
  const models = useModels(waits);
  const described = models.models?.find((each) => each.model_id === model);
  const named = new Set(present.map(({ asked }) => asked.name)); // the memory has them, too, if it was read late
  const before = past.value?.turns.filter((turn) => !named.has(turn.request_id));
  const sides = useSides(model, agent, past.value, present);
  const first = past.value !== undefined && !past.value.turns.length && !present.length;

  /** @param {string} id of a turn @param {Json[]} messages instead of it @returns {Promise<boolean>} */
  const ask = async (id, messages) => {
    setProblem(null);
    setAsking(true);
    try {
      const asked = await branch(model, agent, id, messages, settings());
      if (here.current) open(asked, to(asked.agent));
      return true;
    } catch (error) {
      setProblem(error);
      setAsking(false);
      return false;
    }
  };
  /** @param {string} id @param {Json[]} asked @param {string} answer */
  const tools = (id, asked, answer) => html`<${Tools} messages=${asked} answer=${answer} to=${to}
    busy=${running || asking} sides=${sides.get(id)} greedy=${isGreedy(described)}
    onAsk=${(/** @type {Json[]} */ messages) => ask(id, messages)} />`;
  /** @param {Record<string, string>} given @param {boolean} open */
  const forked = (given, open) => {
    forgetAgents();
    if (!open) return; // its reader has closed the question, and stays where he is
    setForking(null);
    onFork?.(given.new_agent_id);
  };

  return html`<section class="pane" aria-label=${`Chat with ${agent}`}>
    <header class="row">
      <h2><${Called} model=${model} agent=${agent} /></h2><span class="quiet">on <bdi>${model}</bdi></span>
      <span class="push row">
        <a href=${linkTo(['talk'])}>New chat</a>
        <a href=${linkTo(['agents', model, agent])}>Memory</a>
        ${onFork && html`<button disabled=${running}
          onClick=${() => setForking(fork({ key: { model_id: model, agent_id: agent } }))}>Fork beside</button>`}
        ${onClose && html`<button onClick=${onClose}>Close</button>`}
      </span>
    </header>
    <div class="log" ref=${log} role="log" aria-busy=${running} tabindex="0" aria-label="What was said">
      ${past.error && html`<${Problem} error=${past.error} retry=${past.again} />`}
      ${!past.value && !past.error && html`<${Loading} what="Reading the memory" />`}
      ${past.value && past.value.left > 0 && html`<p class="quiet">${counted(past.value.left, 'turn')} before these
        ${' '}${SHOWN} are in <a href=${linkTo(['agents', model, agent])}>its memory</a>.</p>`}
      ${first && html`<p class="quiet">Nothing was said yet.</p>`}
      ${before?.map((turn) => html`<${PastTurn} key=${turn.version} turn=${turn} model=${model}
        tools=${askable(turn) && tools(idOf(turn), turn.messages.slice(0, -1),
          turn.messages[turn.messages.length - 1].content)} />`)}
      ${present.map(({ asked, answer }) => html`<${PresentTurn} key=${asked.name} asked=${asked} answer=${answer}
        model=${described} onRetry=${running ? undefined : () => begin(asked)} onForget=${() => forget(asked)}
        tools=${answer.state === 'done' && tools(asked.name, asked.messages, answer.text)} />`)}
      ${problem && html`<${Problem} error=${problem} />`}
    </div>
    ${!waits && described?.state === 'loading' && html`<p class="quiet" role="status">${
      loadingWords(described)}…</p>`}
    <${Composer} running=${running || asking} begins=${first} focused=${Boolean(onFork)} model=${described}
      onStop=${running ? stop : undefined}
      onSay=${(/** @type {Json[]} */ messages) =>
        begin(newQuestion({ model, agent, messages, settings: settings() }))} />
    ${forking && html`<${Confirm} deed=${forking} onDone=${forked} onClose=${() => setForking(null)} />`}
  </section>`;
}

/**
 * The turns that this page asks for.
 *
 * @param {string} model
 * @param {string} agent
 */
function usePresent(model, agent) {
  const [present, setPresent] = useState(/** @type {Exchange[]} */ ([]));
  const stop = useRef(/** @type {AbortController | null} */ (null));
  /** @param {import('./turn.js').Asked} asked */
  const begin = (asked) => {
    const ending = new AbortController();
    stop.current = ending;
    setPresent((now) => [...now.filter((each) => each.asked !== asked), { asked, answer: noAnswer() }]);
    run(asked, ending.signal, (answer) => {
      if (answer.state !== 'running') forgetAgents(); // it is a new one, or has other tokens now
      if (answer.finished) learn(model, answer.finished);
      setPresent((now) => now.map((each) => (each.asked === asked ? { asked, answer } : each)));
    });
    return true;
  };
  useEffect(() => {
    const first = taken(model, agent);
    if (first) begin(first);
    return () => stop.current?.abort();
  }, []);
  return {
    present,
    running: present.length > 0 && present[present.length - 1].answer.state === 'running',
    begin,
    stop: () => stop.current?.abort(),
    forget: (/** @type {import('./turn.js').Asked} */ asked) =>
      setPresent((now) => now.filter((each) => each.asked !== asked)),
  };
}

/**
 * @param {string} model
 * @param {string} agent
 * @param {{ids: string[], times: string[]} | undefined} past
 * @param {Exchange[]} present
 */
function useSides(model, agent, past, present) {
  const others = usePaths(model, agent);
  const added = present.filter(({ asked }) => !past?.ids.includes(asked.name)).map(({ asked }) => asked.name).join();
  return useMemo(() => {
    const ids = [...past?.ids ?? [], ...added.split(',').filter(Boolean)];
    const sides = past ? sidesOf({ agent, ids, times: past.times }, others) : [];
    return new Map(sides.map((each, at) => [ids[at], each]));
  }, [past, others, added]);
}

/** @param {Json} turn @returns {boolean} whether its question is known, and can be asked again */
function askable({ cut, generated_tokens: generated, messages }) {
  return !cut && generated > 0 && messages.length > 1
    && messages.every((/** @type {Json} */ message) => message.role);
}

/** How a turn looks: who said what, what memory gave above the answer, and the report under it. */
import { html, useMemo } from '../../vendor/preact.js';
import { counted, reused } from '../../format.js';
import { Markdown } from '../../markdown.js';
import { LongText } from '../../parts.js';
import { loadingWords } from '../models/registry.js';
import { MemoryBar } from './memory.js';
import { Report } from './report.js';

/** @typedef {import('../../gateway.js').Json} Json */

/** A turn of before, which never changes.
 * @param {{turn: Json, model: string, tools?: unknown}} props */
export function PastTurn({ turn, model, tools }) {
  const said = useMemo(() => {
    const { cache, usage, timings, reason } = turn.report ?? {};
    const answered = turn.generated_tokens > 0;
    const messages = turn.messages.map((/** @type {Json} */ message) => html`<${Said} role=${message.role || 'text'}
      text=${message.content} reasoning=${message.reasoning_content} calls=${message.tool_calls_json} />`);
    return html`${messages.slice(0, answered ? -1 : undefined)}
      ${cache && html`<${MemoryBar} model=${model} cache=${reused(cache, usage)} timings=${timings} />`}
      ${answered && messages.slice(-1)}
      ${cache ? html`<${Report} cache=${cache} usage=${usage} timings=${timings} reason=${reason} />`
        : html`<p class="report"><span>${counted(turn.tokens, 'token')}, ${
          turn.generated_tokens} generated</span></p>`}`;
  }, [turn, model]);
  return html`<article class="turn">${said}${tools}</article>`;
}

/**
 * A turn that this page has asked for.
 *
 * @param {{asked: import('./turn.js').Asked, answer: import('./turn.js').Answer, model?: Json, onRetry?: () => void,
 *   onForget: () => void, tools?: unknown}} props
 */
export function PresentTurn({ asked, answer, model, onRetry, onForget, tools }) {
  const { state, started, finished } = answer;
  const over = state !== 'running';
  return html`<article class="turn" data-state=${state}>
    ${asked.messages.map(({ role, content }) => html`<${Said} role=${role} text=${content} />`)}
    ${started && html`<${MemoryBar} model=${asked.model} cache=${reused(started.cache, finished?.usage)}
      timings=${finished?.timings} />`}
    ${(answer.text || answer.reasoning || !over) && html`<${Said} role="assistant" text=${answer.text}
      reasoning=${answer.reasoning} growing=${!over}
      waiting=${over || answer.text ? '' : waiting(started, model)} />`}
    ${answer.calls.map((call) => html`<p class="call"><code>${call.name}(${call.arguments_json})</code></p>`)}
    ${started && html`<${Report} cache=${started.cache} trim=${started.context_trim} usage=${finished?.usage}
      timings=${finished?.timings} reason=${finished?.reason} replayed=${finished?.replayed} />`}
    ${state === 'stopped' && html`<p class="problem mild" role="status">Stopped. Unless it had just ended, the agent
      remembers nothing of this turn.
      ${' '}<button onClick=${onForget}>Take it away</button></p>`}
    ${(state === 'broken' || state === 'failed') && html`<p class="problem" role="alert">
      <span dir="auto">${answer.problem}</span> ${onRetry && html`<button onClick=${onRetry}>Try again</button>`}</p>`}
    ${tools}
  </article>`;
}

/**
 * @param {Json} started
 * @param {Json} model
 * @returns {string} the reason why there is no token yet
 */
function waiting(started, model) {
  return !started && model?.state === 'loading' ? loadingWords(model) : 'waiting for the first token';
}

/**
 * @param {{role: string, text?: string, growing?: boolean, reasoning?: string, calls?: string, waiting?: string}} props
 */
function Said({ role, text = '', growing, reasoning, calls, waiting: reason }) {
  const Text = role === 'assistant' ? Markdown : LongText;
  return html`<div class=${`said ${role}`}>
    <span class="role">${role}</span>
    <div class="words">
      ${reasoning && html`<details><summary>Reasoning</summary><${LongText} text=${reasoning} /></details>`}
      ${reason
        ? html`<span class="quiet loading">${reason}…</span>`
        : html`<${Text} text=${text} growing=${growing} />`}
      ${calls && html`<p class="call"><code>${calls}</code></p>`}
    </div>
  </div>`;
}

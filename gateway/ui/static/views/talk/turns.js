/** How a turn looks: who said what, and the report under it. */
import { html, useMemo } from '../../vendor/preact.js';
import { counted } from '../../format.js';
import { LongText } from '../../parts.js';
import { Report } from './report.js';

/** @typedef {import('../../gateway.js').Json} Json */

/** A turn of before, which never changes.
 * @param {{turn: Json}} props */
export function PastTurn({ turn }) {
  return useMemo(() => {
    const { cache, usage, timings, reason } = turn.report ?? {};
    return html`<article class="turn">
      ${turn.messages.map((/** @type {Json} */ said) => html`<${Said} role=${said.role || 'text'} text=${said.content}
        reasoning=${said.reasoning_content} calls=${said.tool_calls_json} />`)}
      ${cache ? html`<${Report} cache=${cache} usage=${usage} timings=${timings} reason=${reason} />`
        : html`<p class="report"><span>${counted(turn.tokens, 'token')}, ${turn.generated_tokens} generated</span></p>`}
    </article>`;
  }, [turn]);
}

/**
 * A turn that this page has asked for.
 *
 * @param {{asked: import('./turn.js').Asked, answer: import('./turn.js').Answer, onRetry?: () => void,
 *   onForget: () => void}} props
 */
export function PresentTurn({ asked, answer, onRetry, onForget }) {
  const { state, started, finished } = answer;
  const over = state !== 'running';
  return html`<article class="turn" data-state=${state}>
    <${Said} role="user" text=${asked.text} />
    ${(answer.text || answer.reasoning || !over) && html`<${Said} role="assistant" text=${answer.text}
      reasoning=${answer.reasoning} waiting=${!over && !answer.text} />`}
    ${answer.calls.map((call) => html`<p class="call"><code>${call.name}(${call.arguments_json})</code></p>`)}
    ${started && html`<${Report} cache=${started.cache} trim=${started.context_trim} usage=${finished?.usage}
      timings=${finished?.timings} reason=${finished?.reason} replayed=${finished?.replayed} />`}
    ${state === 'stopped' && html`<p class="problem mild" role="status">Stopped. Unless it had just ended, the agent
      remembers nothing of this turn.
      ${' '}<button onClick=${onForget}>Take it away</button></p>`}
    ${(state === 'broken' || state === 'failed') && html`<p class="problem" role="alert">
      <span dir="auto">${answer.problem}</span> ${onRetry && html`<button onClick=${onRetry}>Try again</button>`}</p>`}
  </article>`;
}

/** @param {{role: string, text?: string, reasoning?: string, calls?: string, waiting?: boolean}} props */
function Said({ role, text = '', reasoning, calls, waiting }) {
  return html`<div class=${`said ${role}`}>
    <span class="role">${role}</span>
    <div class="words">
      ${reasoning && html`<details><summary>Reasoning</summary><${LongText} text=${reasoning} /></details>`}
      ${waiting
        ? html`<span class="quiet loading">waiting for the first token…</span>`
        : html`<${LongText} text=${text} />`}
      ${calls && html`<p class="call"><code>${calls}</code></p>`}
    </div>
  </div>`;
}

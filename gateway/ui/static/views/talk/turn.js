/**
 * One turn: what is said, and what the answer has become so far.
 *
 * A turn that got no end may have been committed all the same. It keeps its name, so that repeating it doubles nothing.
 */
import { GatewayError, agentPath, explained, newTurn, request } from '../../gateway.js';
import { events } from '../../events.js';

/** @typedef {import('../../gateway.js').Json} Json */
/** @typedef {{model: string, agent: string, text: string, settings: Record<string, number>, name: string}} Asked */
/**
 * @typedef {object} Answer
 * @property {'running' | 'done' | 'stopped' | 'broken' | 'failed'} state
 * @property {string} text
 * @property {string} reasoning
 * @property {Json[]} calls
 * @property {Json} [started]
 * @property {Json} [finished]
 * @property {string} [problem]
 */

/**
 * @param {{model: string, agent: string, text: string, settings?: Record<string, number>}} said
 * @returns {Asked}
 */
export function newQuestion({ settings = {}, ...said }) {
  return { ...said, settings, name: newTurn() };
}

/** @returns {Answer} */
export function noAnswer() {
  return { state: 'running', text: '', reasoning: '', calls: [] };
}

/**
 * @param {Answer} answer
 * @param {string} name of the event
 * @param {Json} data
 * @returns {Answer} the answer with what one more event says
 */
export function heard(answer, name, data) {
  switch (name) {
    case 'started':
      return { ...answer, started: data };
    case 'delta':
      return {
        ...answer,
        text: answer.text + (data.text ?? ''),
        reasoning: answer.reasoning + (data.reasoning ?? ''),
        calls: data.tool_calls?.length ? [...answer.calls, ...data.tool_calls] : answer.calls,
      };
    case 'finished':
      return { ...answer, finished: data, state: 'done' };
    case 'error':
      return { ...answer, state: 'failed', problem: data?.error?.message ?? 'The turn failed.' };
    default:
      return answer; // of a later version
  }
}

/**
 * Run a turn, and tell at most once a frame what became of it; the last telling is its end. Raises nothing.
 *
 * @param {Asked} asked
 * @param {AbortSignal} stop ends it, and then nothing of it is remembered, unless it had ended just before
 * @param {(answer: Answer) => void} tell
 */
export async function run(asked, stop, tell) {
  let answer = noAnswer();
  let frame = 0;
  const telling = () => {
    frame ||= requestAnimationFrame(() => {
      frame = 0;
      tell(answer);
    });
  };
  try {
    const response = await request('POST', agentPath(asked.agent, 'generate'), {
      query: { model: asked.model },
      body: {
        append: { messages: { messages: [{ role: 'user', content: asked.text }] } },
        stream: true,
        ...spread(asked.settings),
      },
      headers: { 'idempotency-key': asked.name },
      signal: stop,
    });
    for await (const event of events(/** @type {ReadableStream<Uint8Array>} */ (response.body))) {
      answer = heard(answer, event.name, JSON.parse(event.data));
      telling();
    }
    if (answer.state === 'running') answer = { ...answer, state: 'broken', problem: BROKEN };
  } catch (error) {
    if (answer.finished) answer = { ...answer, state: 'done' }; // only the end of the stream is missing
    else if (stop.aborted) answer = { ...answer, state: 'stopped' };
    else if (error instanceof GatewayError && error.code !== 'unreachable') {
      answer = { ...answer, state: 'failed', problem: explained(error) };
    } else answer = { ...answer, state: 'broken', problem: BROKEN };
  }
  cancelAnimationFrame(frame);
  tell(answer);
}

const BROKEN = 'The connection broke before the turn had ended. Trying again goes on with the same turn: it is never '
  + 'done twice.';

/** @param {Record<string, number>} settings */
function spread({ max_tokens, ...sampling }) {
  return { ...(max_tokens ? { max_tokens } : {}), ...(Object.keys(sampling).length ? { sampling } : {}) };
}

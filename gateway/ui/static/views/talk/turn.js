/**
 * One turn: what is said, and what the answer has become so far.
 *
 * A turn that got no end may have been committed all the same. It keeps its name, so that repeating it doubles nothing.
 */
import { GatewayError, agentPath, explained, newTurn, request } from '../../gateway.js';
import { events } from '../../events.js';
import { isLoading } from '../models/registry.js';

/** @typedef {import('../../gateway.js').Json} Json */
/**
 * @typedef {object} Asked
 * @property {string} model
 * @property {string} agent
 * @property {Json[]} messages
 * @property {Record<string, number>} settings
 * @property {string} name of the turn
 * @property {boolean} begins no agent may have this name yet
 */
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
 * @param {Omit<Asked, 'name' | 'begins'> & {begins?: boolean}} said
 * @returns {Asked}
 */
export function newQuestion({ begins = false, ...said }) {
  return { ...said, begins, name: newTurn() };
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
    const response = await sent(asked, stop);
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

/**
 * Send a turn; where its model is loaded for longer than the worker lets it wait, send it again.
 *
 * @param {Asked} asked
 * @param {AbortSignal} signal
 * @returns {Promise<Response>}
 */
async function sent({ model, agent, messages, settings, name, begins }, signal) {
  const { max_tokens, ...sampling } = settings;
  const body = {
    append: { messages: { messages } },
    stream: true,
    ...(begins ? { if_version: 0 } : {}),
    ...(max_tokens ? { max_tokens } : {}),
    ...(Object.keys(sampling).length ? { sampling } : {}),
  };
  for (;;) {
    try {
      const headers = { 'idempotency-key': name };
      return await request('POST', agentPath(agent, 'generate'), { query: { model }, body, headers, signal });
    } catch (error) {
      const waits = error instanceof GatewayError && error.status === 503 && await isLoading(model, signal);
      if (!waits) throw error;
      await new Promise((resolve) => { setTimeout(resolve, 500); });
    }
  }
}

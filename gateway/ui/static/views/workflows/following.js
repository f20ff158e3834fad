/** Following a run: each event once, through connections that break and gateways that end, until it has ended. */
import { events } from '../../events.js';
import { GatewayError, json, partOf, request } from '../../gateway.js';
import { added, followedAgain, goesOn, newRun, settled } from './state.js';

/** @typedef {import('../../gateway.js').Json} Json */
/** @typedef {import('./state.js').Run} Run */
/**
 * @typedef {object} Followed
 * @property {Run} run
 * @property {'loading' | 'following' | 'waiting' | 'over' | 'failed'} state
 * @property {unknown} [error] why it is waited for, or was given up
 * @property {boolean} [live] whether it went on when it was first looked at, or was resumed; unknown before
 */

const LONGEST_WAIT = 5000;
const LOOK_AGAIN = 1000;
const LONGEST_LOOK = 15_000;
/** How long somebody may take to go on with a run that is interrupted. */
const GIVEN_UP = 300_000;
/** Errors after which the same is asked again; for a key that is refused, the page asks for another. */
const PASSING = new Set(['unreachable', 'unavailable', 'resource_exhausted', 'unauthenticated']);

/**
 * Runs that a button of another view asks to resume. An address does not, for anybody may have written it.
 *
 * @type {Set<string>}
 */
export const toResume = new Set();

/** @returns {Followed} */
export function nothingYet() {
  return { run: newRun(), state: 'loading' };
}

/** @param {string} id @param {string} [below] @returns {string} the path of a run */
export function runPath(id, below = '') {
  return `v1/workflows/${partOf(id, 'a run')}${below ? `/${below}` : ''}`;
}

/**
 * Follow a run from where `known` is, and tell at most once a frame what became of it. Raises nothing.
 *
 * @param {string} id
 * @param {Followed} known
 * @param {boolean} resume go on with it where it does not go on
 * @param {AbortSignal} stop
 * @param {(now: Followed) => void} tell
 */
export async function follow(id, known, resume, stop, tell) {
  let now = /** @type {Followed} */ ({ ...known, run: followedAgain(known.run), state: 'following', error: undefined });
  let frame = 0;
  let resuming = resume;
  let wait = 0;
  /** @param {Followed} next */
  const becomes = (next) => {
    now = next;
    frame ||= requestAnimationFrame(() => {
      frame = 0;
      if (!stop.aborted) tell(now);
    });
  };
  while (!stop.aborted) {
    try {
      if (resuming || now.live === undefined) now = { ...now, live: resuming || await stateOf(id, stop) === 'running' };
      const answer = await opened(id, now.run.sequence, resuming, stop);
      becomes({ ...now, run: resuming ? goesOn(now.run) : now.run, state: 'following', error: undefined });
      for await (const { name, data } of events(/** @type {ReadableStream<Uint8Array>} */ (answer.body))) {
        const event = JSON.parse(data);
        if (name === 'error') throw new GatewayError(event.error.message, 503, event.error.code ?? '');
        resuming = false;
        wait = 0;
        const run = added(now.run, event); // where that fails the event is asked for again
        becomes({ ...now, run });
      }
      if (now.run.finished) return becomes({ ...now, state: 'over' });
      now = { ...now, run: followedAgain(now.run) };
      const { workflow } = await json('GET', runPath(id), { signal: stop });
      if (workflow.state !== 'running') becomes({ ...now, run: settled(now.run, workflow), state: 'over' });
      if (workflow.state === 'interrupted') { // a gateway goes on with it soon, unless its key is gone
        let looked = 0;
        let next = LOOK_AGAIN;
        while (await stateOf(id, stop) === 'interrupted') {
          if (looked >= GIVEN_UP) return undefined;
          await pause(next, stop);
          looked += next;
          next = Math.min(LONGEST_LOOK, next * 2);
        }
        now = { ...now, run: goesOn(now.run), live: true };
      } else if (workflow.state !== 'running') return undefined;
    } catch (error) {
      if (stop.aborted) return undefined;
      if (now.run.finished) return becomes({ ...now, state: 'over' }); // only the end of the stream is missing
      const passing = !(error instanceof GatewayError) || PASSING.has(error.code) || ofProxy(error);
      becomes({ ...now, run: followedAgain(now.run), state: passing ? 'waiting' : 'failed', error });
      if (!passing) return undefined;
    }
    wait = Math.min(LONGEST_WAIT, wait * 2 || 250);
    await pause(wait, stop);
  }
  return undefined;
}

/** @param {GatewayError} error @returns {boolean} whether a proxy says that the gateway is away: it knows no codes */
function ofProxy({ status, code }) {
  return code === '' && status >= 502 && status <= 504;
}

/** @param {string} id @param {AbortSignal} signal */
async function stateOf(id, signal) {
  return (await json('GET', runPath(id), { signal })).workflow.state;
}

/**
 * @param {string} id
 * @param {number} sequence of the last event that is known
 * @param {boolean} resuming
 * @param {AbortSignal} signal
 */
function opened(id, sequence, resuming, signal) {
  return resuming
    ? request('POST', runPath(id, 'resume'), { body: { after_sequence: sequence }, signal })
    : request('GET', runPath(id, 'events'), { query: { after_sequence: sequence }, signal });
}

/**
 * @param {number} milliseconds
 * @param {AbortSignal} stop
 */
function pause(milliseconds, stop) {
  return new Promise((resolve) => {
    const over = () => {
      clearTimeout(timer);
      stop.removeEventListener('abort', over);
      resolve(undefined);
    };
    const timer = setTimeout(over, milliseconds);
    stop.addEventListener('abort', over);
  });
}

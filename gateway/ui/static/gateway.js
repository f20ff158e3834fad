/** Requests to the gateway that served this page, and their errors. Nothing else is ever asked. */
import { ask, key } from './key.js';

const BASE = new URL('../', location.href); // of /ui/, which may be below a proxy's path

/** @typedef {any} Json */

/** What the gateway refused, or could not be asked. */
export class GatewayError extends Error {
  /**
   * @param {string} message
   * @param {number} status of HTTP; 0 where there was no answer
   * @param {string} code of the gateway, such as not_found
   */
  constructor(message, status, code) {
    super(message);
    this.status = status;
    this.code = code;
  }
}

/**
 * Ask, with the key of this tab; where there is none, or it is refused, wait for another one and ask again.
 *
 * @param {string} method
 * @param {string} path such as "v1/agents"
 * @param {{query?: Record<string, string | number | boolean | undefined>, body?: Json,
 *   headers?: Record<string, string>,
 *   signal?: AbortSignal}} [given]
 * @returns {Promise<Response>} with a status of success
 */
export async function request(method, path, { query = {}, body, headers = {}, signal } = {}) {
  const address = new URL(path, BASE);
  for (const [name, value] of Object.entries(query)) {
    if (value !== undefined && value !== '') address.searchParams.set(name, String(value));
  }
  for (;;) {
    const shown = key();
    const answer = await fetched(address, {
      method,
      signal,
      cache: 'no-store',
      headers: {
        ...(shown ? { authorization: `Bearer ${shown}` } : {}),
        ...(body === undefined ? {} : { 'content-type': 'application/json' }),
        ...headers,
      },
      body: body === undefined ? undefined : JSON.stringify(body),
    });
    if (answer.status === 401) {
      await ask(shown, signal);
      continue;
    }
    if (!answer.ok) throw await errorOf(answer);
    return answer;
  }
}

/**
 * @param {URL} address
 * @param {RequestInit} how
 */
async function fetched(address, how) {
  try {
    return await fetch(address, how);
  } catch (error) {
    if (how.signal?.aborted) throw error;
    throw new GatewayError('The gateway does not answer. Is it running?', 0, 'unreachable');
  }
}

/** @param {Response} answer */
async function errorOf(answer) {
  const told = await answer.json().catch(() => ({}));
  const { message, code } = told?.error ?? {};
  return new GatewayError(message || `The gateway answered ${answer.status}.`, answer.status, code || '');
}

/**
 * As `request`, to JSON.
 *
 * @param {string} method
 * @param {string} path
 * @param {Parameters<typeof request>[2]} [given]
 * @returns {Promise<Json>}
 */
export async function json(method, path, given) {
  return (await request(method, path, given)).json();
}

/**
 * All pages of a list, one by one.
 *
 * @param {string} path
 * @param {Record<string, string | number | boolean | undefined>} query
 * @param {AbortSignal} [signal]
 * @returns {AsyncGenerator<Json>}
 */
export async function* pages(path, query, signal) {
  let token = '';
  do {
    const page = await json('GET', path, { query: { ...query, page_token: token }, signal });
    yield page;
    token = page.next_page_token;
  } while (token);
}

/**
 * @param {string} agent
 * @param {string} [below] such as "turns"
 * @returns {string} the path of an agent
 * @throws {GatewayError} where a browser cannot ask for it
 */
export function agentPath(agent, below = '') {
  return `v1/agents/${partOf(agent, 'an agent')}${below ? `/${below}` : ''}`;
}

/**
 * One part of a path. A browser takes "." and ".." for steps in it, percent-encoded or not, and asks for another path.
 *
 * @param {string} name
 * @param {'an agent' | 'a snapshot' | 'a model' | 'a run'} what has this name
 * @throws {GatewayError} for these two names
 */
export function partOf(name, what) {
  if (name === '.' || name === '..') {
    throw new GatewayError(`A browser cannot ask for ${what} of this name.`, 0, 'name');
  }
  return encodeURIComponent(name);
}

/** @param {unknown} error @returns {string} what to show of it */
export function explained(error) {
  return error instanceof Error ? error.message : String(error);
}

/** @returns {string} a new name of a turn, for which a retry is safe */
export function newTurn() {
  const bytes = crypto.getRandomValues(new Uint8Array(16)); // randomUUID is not there over plain HTTP
  return [...bytes].map((byte) => byte.toString(16).padStart(2, '0')).join('');
}

/** Beginning a run. It goes on without this page, so its beginning is all that is waited for. */
import { events } from '../../events.js';
import { GatewayError, request } from '../../gateway.js';

const BROKEN = 'The connection broke before the run had said that it began. Try again: it is not begun twice.';

/**
 * @param {string} definition YAML
 * @param {Record<string, string>} variables
 * @param {string} name of the request: the same again joins the run that it has begun
 * @returns {Promise<string>} the run's id
 * @throws {GatewayError} where it did not begin, or may have begun and did not say so
 */
export async function begin(definition, variables, name) {
  const stop = new AbortController();
  const body = { definition_yaml: definition, variables };
  const headers = { 'idempotency-key': name };
  const answer = await request('POST', 'v1/workflows', { body, headers, signal: stop.signal });
  try {
    for await (const event of events(/** @type {ReadableStream<Uint8Array>} */ (answer.body))) {
      const told = JSON.parse(event.data);
      if (event.name === 'error') throw new GatewayError(told.error.message, 503, told.error.code ?? '');
      if (told.started) return told.started.workflow.workflow_id;
    }
  } catch (error) {
    if (error instanceof GatewayError) throw error;
  } finally {
    stop.abort();
  }
  throw new GatewayError(BROKEN, 0, 'unreachable');
}

/** Server-sent events out of a response's body: EventSource cannot show a key. */

/** @typedef {{name: string, data: string}} ServerEvent */

/**
 * The events of a stream as they come. Comments are left out, and what a broken stream has begun is dropped.
 *
 * @param {ReadableStream<Uint8Array>} body
 * @returns {AsyncGenerator<ServerEvent>}
 */
export async function* events(body) {
  const reader = body.getReader();
  const decoder = new TextDecoder();
  let held = '';
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      held += decoder.decode(value, { stream: true });
      const blocks = held.split(/\r\n\r\n|\n\n|\r\r/);
      held = /** @type {string} */ (blocks.pop());
      for (const block of blocks) {
        const event = parsed(block);
        if (event) yield event;
      }
    }
  } finally {
    reader.cancel().catch(() => {}); // a stream that broke is over already
  }
}

/**
 * @param {string} block the lines of one event
 * @returns {ServerEvent | null}
 */
export function parsed(block) {
  let name = 'message';
  const data = [];
  for (const line of block.split(/\r\n|\n|\r/)) {
    const colon = line.indexOf(':');
    const field = colon < 0 ? line : line.slice(0, colon);
    const value = colon < 0 ? '' : line.slice(colon + 1).replace(/^ /, '');
    if (field === 'data') data.push(value);
    else if (field === 'event') name = value;
  }
  return data.length ? { name, data: data.join('\n') } : null;
}

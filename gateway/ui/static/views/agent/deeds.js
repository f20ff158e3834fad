/** What can be done to an agent: what it costs, what is asked for, and the request. */
import { agentPath, json, partOf, request } from '../../gateway.js';
import { bytes, counted, duration, number, period, seconds } from '../../format.js';

/** @typedef {import('../../gateway.js').Json} Json */
/**
 * @typedef {object} Field
 * @property {string} name
 * @property {string} label
 * @property {string} value
 * @property {string} [type]
 * @property {number} [max]
 * @property {[string, string][]} [choices] values and what they mean
 * @property {string} [empty] what it means to leave it empty; else it must not be
 */
/**
 * @typedef {object} Deed
 * @property {string} title
 * @property {string} cost what it takes and what is lost, to be read before it is done
 * @property {string} verb what its button says
 * @property {Field[]} [fields]
 * @property {string} [typed] what has to be typed to confirm it
 * @property {boolean} [destroys]
 * @property {(given: Record<string, string>) => Promise<string>} run returns what was done
 * @property {'gone' | 'fork'} [after] where the page goes then
 */

/**
 * @param {{key: Json}} agent
 * @param {string} method
 * @param {string} below
 * @param {Json} [body]
 */
function ask({ key }, method, below, body) {
  return json(method, agentPath(key.agent_id, below), { query: { model: key.model_id }, body });
}

/** @param {{key: Json}} agent @param {Json} [at] the version to begin from, if not the present one @returns {Deed} */
export function fork(agent, at = {}) {
  return {
    title: 'Fork',
    cost: `A second agent with the same memory. It takes no room and no time now: both share what they have in common,
      and each keeps only what it adds.`,
    verb: 'Fork',
    fields: [{ name: 'new_agent_id', label: 'Name of the fork', value: `${agent.key.agent_id}-fork` }],
    after: 'fork',
    run: async (given) => {
      partOf(given.new_agent_id, 'an agent');
      await ask(agent, 'POST', 'fork', { ...given, ...at });
      return `Forked as ${given.new_agent_id}.`;
    },
  };
}

/** @param {Json} agent @param {Json} snapshot @returns {Deed} */
export function forkAt(agent, snapshot) {
  const { version, revision } = snapshot.version;
  const at = { at_version: version, ...(revision ? { at_revision: revision } : {}) };
  return {
    ...fork(agent, at),
    title: `Fork ${snapshot.name}`,
    cost: `A second agent with the memory of version ${number(snapshot.version.version)}. This one stays as it is.`,
  };
}

/** @param {Json} agent @returns {Deed} */
export function snapshot(agent) {
  return {
    title: 'Snapshot',
    cost: `Keeps the present state, ${counted(agent.tokens, 'token')}, under a name. It takes no room until the memory
      goes another way.`,
    verb: 'Keep it',
    fields: [{ name: 'name', label: 'Name', value: '' }],
    run: async (given) => {
      partOf(given.name, 'a snapshot');
      await ask(agent, 'POST', 'snapshots', given);
      return `Kept as ${given.name}.`;
    },
  };
}

/** @param {Json} agent @param {Json} kept @returns {Deed} */
export function restore(agent, kept) {
  return {
    title: `Restore ${kept.name}`,
    cost: `The memory becomes what it was: ${counted(kept.tokens, 'token')} instead of ${number(agent.tokens)}. What it
      is now stays as an automatic snapshot where something is dropped. KV that is no longer there is computed again.`,
    verb: 'Restore',
    run: async () => {
      await ask(agent, 'POST', `snapshots/${partOf(kept.name, 'a snapshot')}/restore`, {});
      return `Restored ${kept.name}.`;
    },
  };
}

/** @param {Json} agent @param {Json} kept @returns {Deed} */
export function deleteSnapshot(agent, kept) {
  return {
    title: `Delete snapshot ${kept.name}`,
    cost: 'Deletes what only this snapshot has, text and KV, for good. The agent stays as it is.',
    verb: 'Delete',
    destroys: true,
    run: async () => {
      await ask(agent, 'DELETE', `snapshots/${partOf(kept.name, 'a snapshot')}`);
      return `Deleted snapshot ${kept.name}.`;
    },
  };
}

/** @param {Json} agent @returns {Deed} */
export function trim(agent) {
  return {
    title: 'Trim',
    cost: `Drops the end of the memory, which has ${counted(agent.tokens, 'token')}. What is dropped stays as an
      automatic snapshot, of which the last four are kept.`,
    verb: 'Trim',
    fields: [{
      name: 'keep_tokens', label: 'Tokens to keep', value: String(agent.tokens), type: 'number', max: agent.tokens,
    }],
    run: async ({ keep_tokens: kept }) => {
      await ask(agent, 'POST', 'trim', { keep_tokens: Number(kept), if_version: agent.version.version });
      return `Trimmed to ${number(Number(kept))} tokens.`;
    },
  };
}

/** @param {Json} agent @returns {Deed} */
export function pin(agent) {
  const pinned = !agent.pinned;
  return {
    title: pinned ? 'Pin' : 'Unpin',
    cost: pinned
      ? `Its KV, ${bytes(agent.warm_bytes)} on disk, is not evicted to make room for others, which have so much less.`
      : 'Its KV may be evicted again to make room for others. Its memory stays.',
    verb: pinned ? 'Pin' : 'Unpin',
    run: async () => {
      await ask(agent, 'PUT', 'pin', { pinned });
      return pinned ? 'Pinned.' : 'Unpinned.';
    },
  };
}

/** @param {Json} agent @returns {Deed} */
export function expiry(agent) {
  return {
    title: 'Expires',
    cost: `When an agent was idle for so long, its KV leaves the disk, ${bytes(agent.warm_bytes)}, and the next turn
      computes it again; or all of it is deleted for good, with its snapshots. Times are such as 90 s, 15 min, 2 h or
      30 d.`,
    verb: 'Set',
    fields: [
      { name: 'ttl', label: 'KV expires after', value: agent.ttl ? period(agent.ttl) : '', empty: 'never' },
      {
        name: 'delete_after',
        label: 'Deleted after',
        value: agent.delete_after ? period(agent.delete_after) : '',
        empty: 'never',
      },
    ],
    run: async (given) => {
      const set = Object.entries(given).filter(([, text]) => text.trim()).map(([name, text]) => [name, seconds(text)]);
      const { agent: now } = await ask(agent, 'PUT', 'ttl', Object.fromEntries(set));
      if (!now.ttl && !now.delete_after) return 'It never expires.';
      return [now.ttl && `KV expires after ${duration(now.ttl)}.`, now.delete_after && `Deleted after ${
        duration(now.delete_after)}.`].filter(Boolean).join(' ');
    },
  };
}

/** @param {Json} agent @returns {Deed} */
export function contextPolicy(agent) {
  return {
    title: 'When the context is full',
    cost: `What is done when a turn no longer fits into the model's context. What is dropped stays as an automatic
      snapshot, and what is left is computed once more.`,
    verb: 'Set',
    fields: [{
      name: 'context_policy',
      label: 'Then',
      value: agent.context_policy ?? 'trim',
      choices: [
        ['trim', 'drop the oldest turns'],
        ['summarize', 'drop the oldest turns, and keep a note of them that the model writes'],
        ['refuse', 'refuse the turn'],
      ],
    }],
    run: async (given) => {
      await ask(agent, 'PUT', 'context-policy', given);
      return `A full context: ${given.context_policy}.`;
    },
  };
}

/** @param {Json} agent @returns {Deed} */
export function prefetch(agent) {
  return {
    title: 'Prefetch',
    cost: `Reads up to ${bytes(agent.warm_bytes)} of KV into the worker’s memory, so that its next turn begins at once.
      Idle agents may leave that memory for it.`,
    verb: 'Prefetch',
    run: async () => {
      const { tokens, bytes: read } = await ask(agent, 'POST', 'prefetch', { tier: 'hot' });
      return `${counted(tokens, 'token')} are hot; ${bytes(read)} were read.`;
    },
  };
}

/** @param {Json} agent @param {'hot' | 'warm' | 'remote'} tier @returns {Deed} */
export function evict(agent, tier) {
  const costs = {
    hot: 'Its KV leaves the worker’s memory. The next turn reads it from disk: milliseconds.',
    warm: `Its KV leaves the worker’s memory and the disk. Without a copy in the object store the next turn computes
      ${counted(agent.tokens, 'token')} again.`,
    remote: `Its KV is dropped everywhere. The next turn computes ${counted(agent.tokens, 'token')} again.`,
  };
  return {
    title: `Evict from ${tier}`,
    cost: `${costs[tier]} The memory itself stays.`,
    verb: 'Evict',
    destroys: tier !== 'hot',
    run: async () => `${bytes((await ask(agent, 'POST', 'evict', { tier })).freed_bytes)} freed.`,
  };
}

/** @param {Json} agent @returns {Deed} */
export function exported(agent) {
  return {
    title: 'Export',
    cost: `A file with its memory and about ${bytes(agent.warm_bytes)} of KV, which this browser holds until it is
      saved. The agent waits while the state is copied.`,
    verb: 'Export',
    run: async () => {
      const { agent_id: name, model_id: model } = agent.key;
      const answer = await request('GET', agentPath(name, 'export'), { query: { model } });
      save(await answer.blob(), `${name}.agent`);
      return 'Exported.';
    },
  };
}

/** @param {Json} agent @returns {Deed} */
export function erase(agent) {
  return {
    title: 'Delete',
    cost: `Deletes ${counted(agent.turns, 'turn')}, ${counted(agent.tokens, 'token')}, their text and their KV for good,
      with all snapshots. Nothing brings them back. Forks stay.`,
    verb: 'Delete for good',
    typed: agent.key.agent_id,
    destroys: true,
    after: 'gone',
    run: async () => {
      const { freed_bytes: freed } = await ask(agent, 'DELETE', '');
      return `Deleted ${agent.key.agent_id}; ${bytes(freed)} freed.`;
    },
  };
}

/**
 * Have the browser save a file.
 *
 * @param {Blob} content
 * @param {string} name
 */
export function save(content, name) {
  const link = document.createElement('a');
  link.href = URL.createObjectURL(content);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
}

/** The columns of the table of agents, and their order. */
import { html } from '../../vendor/preact.js';
import { ago, bytes, clock, duration, number } from '../../format.js';
import { linkTo } from '../../routing.js';
import { Tier } from '../../parts.js';
import { Called } from './called.js';

/** @typedef {import('../../gateway.js').Json} Json */
/**
 * @typedef {object} Column
 * @property {string} title
 * @property {(agent: Json) => string | number} by what it is sorted by
 * @property {(agent: Json, now: number) => unknown} cell
 * @property {boolean} downFirst the largest first, at the first click
 * @property {string} [kind] its class: "num", or "wide" where a phone has no room for it
 */

const HEAT = /** @type {Record<string, number>} */ ({ hot: 3, warm: 2, remote: 1 });

/** @type {Record<string, Column>} */
export const COLUMNS = {
  agent: {
    title: 'Agent',
    by: (agent) => agent.key.agent_id,
    cell: ({ key }) => html`<a href=${linkTo(['agents', key.model_id, key.agent_id])}>
      <${Called} model=${key.model_id} agent=${key.agent_id} /></a>`,
    downFirst: false,
    kind: 'who',
  },
  model: {
    title: 'Model',
    by: (agent) => agent.key.model_id,
    cell: ({ key }) => key.model_id,
    downFirst: false,
    kind: 'wide',
  },
  tier: {
    title: 'Tier',
    by: (agent) => HEAT[agent.tier] ?? 0,
    cell: ({ tier }) => html`<${Tier} tier=${tier} />`,
    downFirst: true,
  },
  tokens: {
    title: 'Tokens',
    by: (agent) => agent.tokens,
    cell: (agent) => number(agent.tokens),
    downFirst: true,
    kind: 'num',
  },
  turns: {
    title: 'Turns',
    by: (agent) => agent.turns,
    cell: (agent) => number(agent.turns),
    downFirst: true,
    kind: 'num wide',
  },
  size: {
    title: 'Disk usage',
    by: (agent) => agent.warm_bytes,
    cell: (agent) => bytes(agent.warm_bytes),
    downFirst: true,
    kind: 'num wide',
  },
  used: {
    title: 'Last use',
    by: (agent) => Date.parse(agent.update_time ?? '') || 0,
    cell: (agent, now) => html`<time title=${clock(agent.update_time)}>${ago(agent.update_time, now)}</time>`,
    downFirst: true,
    kind: 'num used',
  },
  pinned: {
    title: 'Pinned',
    by: (agent) => Number(agent.pinned),
    cell: ({ pinned }) => (pinned ? 'pinned' : ''),
    downFirst: true,
    kind: 'wide',
  },
  expiry: { title: 'Expires', by: expiry, cell: (agent) => expiryText(agent), downFirst: false, kind: 'wide' },
};

/** @param {Json} agent @returns {number} idle seconds until something of it goes */
function expiry(agent) {
  return Math.min(agent.ttl ?? Infinity, agent.delete_after ?? Infinity);
}

/** @param {Json} agent */
function expiryText({ ttl, delete_after: deleted }) {
  const said = [ttl ? `KV ${duration(ttl)}` : '', deleted ? `all ${duration(deleted)}` : ''];
  return said.filter(Boolean).join(', ');
}

/**
 * @param {Json[]} agents
 * @param {string} sought what names and models must have, in any case
 * @param {{column: string, down: boolean}} order
 * @returns {Json[]}
 */
export function arranged(agents, sought, { column, down }) {
  const wanted = sought.trim().toLowerCase();
  const found = wanted
    ? agents.filter(({ key }) => `${key.agent_id}\n${key.model_id}`.toLowerCase().includes(wanted))
    : [...agents];
  const { by } = COLUMNS[column];
  const sign = down ? -1 : 1;
  return found.sort((one, other) => sign * compared(by(one), by(other)));
}

/**
 * @param {string | number} one
 * @param {string | number} other
 */
function compared(one, other) {
  return one < other ? -1 : Number(one > other);
}

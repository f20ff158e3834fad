/** A memory's text as the model sees it, coloured by where the KV of each block is. */
import { html, useMemo, useState } from '../../vendor/preact.js';
import { TIERS, number } from '../../format.js';
import { Tier } from '../../parts.js';

/** @typedef {import('../../gateway.js').Json} Json */
/** @typedef {{text: string, tier: string, from: number, to: number}} Stretch text of one tier, and its tokens */

const SHOWN = 40;

/**
 * The text of a turn, cut where the blocks of the ledger are. A character that a block ends in is the next one's.
 *
 * @param {Uint8Array} text of the turn
 * @param {number} at where it begins in the text of the ledger, in bytes
 * @param {Json[]} blocks of the ledger, in order
 * @returns {Stretch[]}
 */
export function stretches(text, at, blocks) {
  const decoder = new TextDecoder();
  /** @type {Stretch[]} */
  const found = [];
  let done = 0;
  for (const block of blocks) {
    const end = Math.min(text.length, block.first_byte + block.bytes - at);
    if (end <= done) continue;
    if (block.first_byte - at >= text.length) break;
    found.push({
      text: decoder.decode(text.subarray(done, end), { stream: end < text.length }),
      tier: block.tier ?? 'none',
      from: block.first_token,
      to: block.first_token + block.tokens,
    });
    done = end;
  }
  if (done < text.length) found.push({ text: decoder.decode(text.subarray(done)), tier: 'none', from: 0, to: 0 });
  return found;
}

/** @param {{text: Uint8Array, at: number, blocks: Json[]}} props */
export function Coloured({ text, at, blocks }) {
  const [shown, setShown] = useState(SHOWN);
  const all = useMemo(() => stretches(text, at, blocks), [text, at, blocks]);
  return html`<div class="coloured" dir="auto">${all.slice(0, shown).map(({ text: words, tier, from, to }) => html`<span
    class=${`stretch ${tier}`} title=${to ? `tokens ${number(from)}–${number(to)}: ${TIERS[tier] ?? tier}` : ''}>${
    words}</span>`)}
    ${all.length > shown && html`<button class="link" onClick=${() => setShown(shown * 2)}>${
      `… ${number(all.length - shown)} more blocks`}</button>`}</div>`;
}

/** All blocks in a strip, and how many tokens each tier has.
 * @param {{blocks: Json[]}} props */
export function BlockStrip({ blocks }) {
  /** @type {Record<string, number>} */
  const tokens = {};
  for (const { tier, tokens: count } of blocks) tokens[tier ?? 'none'] = (tokens[tier ?? 'none'] ?? 0) + count;
  const said = Object.entries(tokens);
  return html`<div class="strip">
    <div class="bar-of" role="img" aria-label=${`KV by block: ${
      said.map(([tier, count]) => `${number(count)} tokens ${tier}`).join(', ')}`}>
      ${runs(blocks).map(({ tier, tokens: count }) => html`<span class=${`tier ${tier}`}
        style=${{ flexGrow: count }}></span>`)}</div>
    <p class="row">${said.map(([tier, count]) => html`<span><${Tier} tier=${tier} /> ${number(count)} tokens
      <span class="quiet"> ${TIERS[tier]}</span></span>`)}</p>
  </div>`;
}

/**
 * @param {Json[]} blocks
 * @returns {{tier: string, tokens: number}[]} neighbours of one tier as one, where there are many
 */
function runs(blocks) {
  /** @type {{tier: string, tokens: number}[]} */
  const found = [];
  for (const { tier, tokens } of blocks) {
    const last = found[found.length - 1];
    if (blocks.length > 200 && last?.tier === (tier ?? 'none')) last.tokens += tokens;
    else found.push({ tier: tier ?? 'none', tokens });
  }
  return found;
}

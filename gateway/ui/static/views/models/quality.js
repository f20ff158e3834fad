/** What fewer bits do to the KV of a model, where that was measured: bytes of a token against the divergence. */
import { html } from '../../vendor/preact.js';
import { bytes } from '../../format.js';

/** @typedef {import('../../gateway.js').Json} Json */

const [WIDTH, HEIGHT, LEFT, BELOW] = [420, 170, 64, 34];
const LEAST = 1e-7; // a divergence of nothing has no place on a scale of powers of ten

/** @param {{model: Json}} props */
export function Quality({ model }) {
  const measured = /** @type {Json[]} */ (model.kv_bits_measured);
  return html`<div class="quality">
    <${Plot} measured=${measured} />
    <table class="kl"><caption class="unseen">Quality of KV by bits</caption>
      <thead><tr><th scope="col">Bits</th><th scope="col">KL divergence</th>
        <th scope="col" class="num">A token</th></tr></thead>
      <tbody>${measured.map((each) => html`<tr><th scope="row">${each.kv_bits}</th>
        <td>${shown(each.kl_divergence)}${each.good ? '' : ', too much'}</td>
        <td class="num">${bytes(each.bytes_per_token)}</td></tr>`)}</tbody></table></div>`;
}

/** @param {number} divergence */
function shown(divergence) {
  return Number.isFinite(divergence) && divergence < 1e30 ? Number(divergence).toPrecision(2) : 'infinite';
}

/** @param {{measured: Json[]}} props */
function Plot({ measured }) {
  const powers = measured.map((each) => Math.log10(Math.min(1e3, Math.max(LEAST, each.kl_divergence))));
  const low = Math.floor(Math.min(...powers));
  const high = Math.max(Math.ceil(Math.max(...powers)), low + 1);
  const most = 1.15 * Math.max(...measured.map((each) => each.bytes_per_token));
  const x = (/** @type {number} */ size) => LEFT + ((WIDTH - LEFT - 10) * size) / most;
  const y = (/** @type {number} */ power) => 10 + ((HEIGHT - BELOW - 10) * (high - power)) / (high - low);
  const step = Math.max(1, Math.ceil((high - low) / 5));
  const ticks = Array.from({ length: Math.floor((high - low) / step) + 1 }, (_, place) => high - place * step);
  const said = measured.map((each) => `${each.kv_bits} bits ${shown(each.kl_divergence)}`).join(', ');
  return html`<figure class="plot"><figcaption>KL divergence from unquantized KV, by the bytes of a token</figcaption>
    <svg viewBox=${`0 0 ${WIDTH} ${HEIGHT}`} role="img" aria-label=${`KL divergence by bits: ${said}`}>
      ${ticks.map((power) => html`<g><line class="grid" x1=${LEFT} x2=${WIDTH - 10} y1=${y(power)} y2=${y(power)} />
        <text x=${LEFT - 8} y=${y(power) + 4} text-anchor="end">10${superscript(power)}</text></g>`)}
      <text x=${WIDTH - 10} y=${HEIGHT - 4} text-anchor="end">${bytes(most)} a token</text>
      <text x=${LEFT} y=${HEIGHT - 4}>0</text>
      ${measured.map((each, place) => html`<g class=${each.good ? 'good' : 'bad'}>
        <circle cx=${x(each.bytes_per_token)} cy=${y(powers[place])} r="4.5" />
        <text x=${x(each.bytes_per_token)} y=${y(powers[place]) + (y(powers[place]) < 30 ? 20 : -9)}
          text-anchor="middle">${each.kv_bits} bits</text></g>`)}
    </svg></figure>`;
}

/** @param {number} power */
function superscript(power) {
  return [...String(power)].map((sign) => (sign === '-' ? '⁻' : '⁰¹²³⁴⁵⁶⁷⁸⁹'[Number(sign)])).join('');
}

/** Lines over time, drawn by uPlot, which is loaded when the first one is shown. */
import { html, useEffect, useRef, useState } from '../../vendor/preact.js';

const FEW = 30;

/** @typedef {{name: string, colour: string, values: (number | null)[]}} Line `colour`: a property of the style sheet */

/**
 * @param {{title: string, unit: string, seconds: number, times: number[], lines: Line[], most?: number}} props always
 *   of the same lines; `seconds` is the window's length
 */
export function Plot({ title, unit, seconds, times, lines, most }) {
  const place = useRef(/** @type {HTMLElement | null} */ (null));
  const [missing, setMissing] = useState(false);
  const plot = useRef(/** @type {import('../../vendor/uplot.js').default | null} */ (null));
  const data = () => [times, ...lines.map(({ values }) => values)];
  const newest = useRef(data);
  newest.current = data;
  useEffect(() => {
    let gone = false;
    const target = /** @type {HTMLElement} */ (place.current);
    const colour = (/** @type {string} */ name) => () => resolved(target, name);
    const quiet = {
      stroke: () => getComputedStyle(target).color,
      grid: { stroke: () => getComputedStyle(target).borderTopColor, width: 1 },
    };
    /** @param {unknown} _ @param {number[]} ticks */
    const labels = (_, ticks) => ticks.map((tick) => `${tick}${unit}`);
    /** @param {import('../../vendor/uplot.js').default} plot */
    const fixed = ({ data: [at] }) => {
      const to = at[at.length - 1] ?? Date.now() / 1000;
      return [to - seconds, to];
    };
    /** @param {unknown} _ @param {number} __ @param {number} top */
    const fromNothing = (_, __, top) => [0, most ?? Math.max(1, top * 1.1)];
    /** @param {import('../../vendor/uplot.js').default} plot */
    const few = ({ data: [at] }) => at.length < FEW; // else a line that just began is a pixel
    const sized = new ResizeObserver(() => plot.current?.setSize({ width: target.clientWidth, height: 150 }));
    import('../../vendor/uplot.js').then(({ default: UPlot }) => {
      if (gone) return;
      plot.current = new UPlot({
        width: target.clientWidth,
        height: 150,
        series: [{}, ...lines.map((line) => ({
          label: line.name, stroke: colour(line.colour), width: 1.5, spanGaps: true, points: { size: 4, show: few },
        }))],
        axes: [quiet, { ...quiet, size: 76, values: labels }],
        scales: {
          x: { range: fixed },
          y: { range: fromNothing },
        },
        cursor: { show: false },
        legend: { show: false },
      }, newest.current(), target);
      sized.observe(target);
    }, () => setMissing(true));
    return () => {
      gone = true;
      sized.disconnect();
      plot.current?.destroy();
      plot.current = null;
    };
  }, []);
  useEffect(() => plot.current?.setData(data()), [times, lines]);
  return html`<figure class="plot"><figcaption class="row"><span>${title}</span>${
      lines.map(({ name, colour, values }) => html`<span
      class="line">${lines.length > 1
        && html`<i class=${`swatch ${colour.replace('--', '')}`}></i>${`${name} `}`}<strong>${
      shown(values, unit)}</strong></span>`)}</figcaption>
    ${missing && html`<p class="quiet" role="status">What draws these lines could not be loaded; reload the page.</p>`}
    <div ref=${place} class="canvas" aria-hidden="true"></div></figure>`;
}

/**
 * @param {HTMLElement} within
 * @param {string} name of a property of the style sheet, whose value may depend on light and dark
 * @returns {string} the colour that it is there, as a canvas takes it
 */
function resolved(within, name) {
  const probe = document.createElement('i');
  probe.style.color = `var(${name})`;
  within.append(probe);
  const { color } = getComputedStyle(probe);
  probe.remove();
  return color;
}

/**
 * @param {(number | null)[]} values
 * @param {string} unit
 */
function shown(values, unit) {
  const last = values[values.length - 1];
  return last == null ? '–' : `${last < 10 && last % 1 ? last.toFixed(1) : Math.round(last)}${unit}`;
}

/** A line over time, drawn by uPlot, which is loaded when the first one is shown. */
import { html, useEffect, useRef } from '../../vendor/preact.js';

/**
 * @param {{title: string, unit: string, times: number[], values: (number | null)[], most?: number}} props
 */
export function Plot({ title, unit, times, values, most }) {
  const place = useRef(/** @type {HTMLElement | null} */ (null));
  const plot = useRef(/** @type {import('../../vendor/uplot.js').default | null} */ (null));
  useEffect(() => {
    let gone = false;
    const target = /** @type {HTMLElement} */ (place.current);
    const colour = (/** @type {string} */ name) => () => getComputedStyle(target).getPropertyValue(name);
    const quiet = { stroke: () => getComputedStyle(target).color, grid: { stroke: () => getComputedStyle(target).borderTopColor, width: 1 } };
    const sized = new ResizeObserver(() => plot.current?.setSize({ width: target.clientWidth, height: 150 }));
    import('../../vendor/uplot.js').then(({ default: UPlot }) => {
      if (gone) return;
      plot.current = new UPlot({
        width: target.clientWidth,
        height: 150,
        series: [{}, { label: title, stroke: colour('outline-color'), width: 1.5 }],
        axes: [quiet, { ...quiet, size: 56, values: (/** @type {unknown} */ _, /** @type {number[]} */ ticks) => ticks.map((tick) => `${tick}${unit}`) }],
        scales: {
          x: { range: (/** @type {unknown} */ _, /** @type {number} */ from, /** @type {number} */ to) => [Math.min(from, to - 60), to] },
          y: { range: (/** @type {unknown} */ _, /** @type {number} */ __, /** @type {number} */ top) => [0, most ?? Math.max(1, top * 1.1)] },
        },
        cursor: { show: false },
        legend: { show: false },
      }, [times, values], target);
      sized.observe(target);
    });
    return () => {
      gone = true;
      sized.disconnect();
      plot.current?.destroy();
      plot.current = null;
    };
  }, []);
  useEffect(() => plot.current?.setData([times, values]), [times, values]);
  const last = values[values.length - 1];
  return html`<figure class="plot"><figcaption>${title} <strong>${last == null ? '–' : `${Math.round(last)}${unit}`}</strong></figcaption>
    <div ref=${place} class="canvas" aria-hidden="true"></div></figure>`;
}

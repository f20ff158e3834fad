/**
 * A table of which only the rows in sight are drawn: 10,000 agents cost as much as forty.
 *
 * Arrows, Page Up, Page Down, Home and End go through its rows, drawn or not; Enter follows a row's link.
 */
import { html, useEffect, useLayoutEffect, useRef, useState } from '../../vendor/preact.js';
import { COLUMNS } from './columns.js';

/** @typedef {import('../../gateway.js').Json} Json */

const HEIGHT = 34;
const BEYOND = 10;

/**
 * @param {{rows: Json[], order: {column: string, down: boolean}, onSort: (column: string) => void, now: number}} props
 */
export function Table({ rows, order, onSort, now }) {
  const box = useRef(/** @type {HTMLDivElement | null} */ (null));
  const [seen, setSeen] = useState({ top: 0, height: 800 });
  const [active, setActive] = useState(-1);
  useEffect(() => {
    const scrolled = /** @type {HTMLDivElement} */ (box.current);
    const look = () => setSeen({ top: scrolled.scrollTop, height: scrolled.clientHeight });
    const resized = new ResizeObserver(look);
    resized.observe(scrolled);
    scrolled.addEventListener('scroll', look, { passive: true });
    return () => {
      resized.disconnect();
      scrolled.removeEventListener('scroll', look);
    };
  }, []);
  const from = Math.max(0, Math.min(Math.floor(seen.top / HEIGHT) - BEYOND, rows.length - 1));
  const to = Math.min(rows.length, Math.ceil((seen.top + seen.height) / HEIGHT) + BEYOND);
  useLayoutEffect(() => {
    const focused = document.activeElement;
    if (active < 0 || (focused !== document.body && !box.current?.contains(focused))) return; // it is somebody else's
    const link = box.current?.querySelector(`[data-row="${active}"] a`);
    if (link instanceof HTMLElement && focused !== link) link.focus({ preventScroll: true });
  }, [active, from, to]);

  /** @param {KeyboardEvent} event */
  const pressed = (event) => {
    const page = Math.max(1, Math.floor(seen.height / HEIGHT) - 2);
    const steps = /** @type {Record<string, number>} */ ({
      ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -rows.length, End: rows.length,
    });
    const step = steps[event.key];
    if (!step || !rows.length || event.target instanceof HTMLButtonElement) return;
    event.preventDefault();
    const next = Math.max(0, Math.min(rows.length - 1, active < 0 && step === 1 ? 0 : active + step));
    const scrolled = /** @type {HTMLDivElement} */ (box.current);
    const head = scrolled.querySelector('thead')?.clientHeight ?? 0;
    if (next * HEIGHT < scrolled.scrollTop) scrolled.scrollTop = next * HEIGHT;
    const end = (next + 1) * HEIGHT + head - scrolled.clientHeight;
    if (end > scrolled.scrollTop) scrolled.scrollTop = end;
    setActive(next);
  };

  return html`<div class="rows" ref=${box} tabindex="0" role="region" aria-label="Agents" onKeyDown=${pressed}>
    <table aria-rowcount=${rows.length + 1}>
      <thead><tr aria-rowindex="1">${Object.entries(COLUMNS).map(([name, column]) => html`
        <th scope="col" class=${column.kind ?? ''} aria-sort=${sorted(name, order)}>
          <button class="link" onClick=${() => onSort(name)}>${column.title}</button></th>`)}</tr></thead>
      <tbody>
        ${from > 0 && html`<tr key="before" aria-hidden="true"><td class="gap"
          style=${{ height: `${from * HEIGHT}px` }}></td></tr>`}
        ${rows.slice(from, to).map((agent, place) => html`
          <tr key=${`${agent.key.model_id}\n${agent.key.agent_id}`} data-row=${from + place}
            aria-rowindex=${from + place + 2} onFocusCapture=${() => setActive(from + place)}>
            ${Object.values(COLUMNS).map((column) => html`<td class=${column.kind ?? ''}>${
              column.cell(agent, now)}</td>`)}
          </tr>`)}
        ${to < rows.length && html`<tr key="after" aria-hidden="true"><td class="gap"
          style=${{ height: `${(rows.length - to) * HEIGHT}px` }}></td></tr>`}
      </tbody>
    </table>
  </div>`;
}

/**
 * @param {string} name
 * @param {{column: string, down: boolean}} order
 */
function sorted(name, order) {
  if (order.column !== name) return 'none';
  return order.down ? 'descending' : 'ascending';
}

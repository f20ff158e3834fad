/** Agents: all of a namespace, or one of them. */
import { html, useEffect, useMemo, useState } from '../vendor/preact.js';
import { counted, number } from '../format.js';
import { Problem } from '../parts.js';
import { OneAgent } from './agent.js';
import { useAgents } from './agents/loading.js';
import { COLUMNS, arranged } from './agents/columns.js';
import { Table } from './agents/table.js';

/** @param {{place: import('../routing.js').Place}} props */
export function Agents({ place }) {
  const [model, agent] = place.parts;
  if (model && agent) {
    return html`<${OneAgent} key=${`${model}\n${agent}`} model=${model} agent=${agent} place=${place} />`;
  }
  return html`<${AllAgents} />`;
}

function AllAgents() {
  const { agents, done, whole, error, stop, again } = useAgents();
  const [sought, setSought] = useState('');
  const [order, setOrder] = useState({ column: 'used', down: true });
  const [now, setNow] = useState(Date.now);
  useEffect(() => {
    const timer = setInterval(() => setNow(Date.now()), 30_000);
    return () => clearInterval(timer);
  }, []);
  const rows = useMemo(() => arranged(agents, sought, order), [agents, sought, order]);
  /** @param {string} column */
  const sort = (column) => setOrder((before) => ({
    column, down: before.column === column ? !before.down : COLUMNS[column].downFirst,
  }));
  return html`<section class="fill">
    <div class="row head">
      <h1>Agents</h1>
      <label class="search"><span class="unseen">Search</span><input type="search" placeholder="Search names and models"
        value=${sought} onInput=${(/** @type {{target: HTMLInputElement}} */ e) => setSought(e.target.value)} /></label>
      <span class="quiet" role="status">${sought ? `${number(rows.length)} of ` : ''}${
        counted(agents.length, 'agent')}${done ? '' : ', loading…'}${
        done && !whole && !error ? ', and there are more' : ''}</span>
      <span class="push">${done
        ? html`<button onClick=${again}>Refresh</button>`
        : html`<button onClick=${stop}>Stop loading</button>`}</span>
    </div>
    ${error && html`<${Problem} error=${error} retry=${again} />`}
    ${done && !agents.length && !error
      ? html`<p>There are no agents yet. The first turn makes one: <a href="#/talk">talk to one</a>.</p>`
      : html`<${Table} rows=${rows} order=${order} onSort=${sort} now=${now} />`}
  </section>`;
}

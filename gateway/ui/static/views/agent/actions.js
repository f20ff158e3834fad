/** What can be done to an agent, as a menu. */
import { html, useEffect, useRef, useState } from '../../vendor/preact.js';
import { linkTo } from '../../routing.js';
import { forgetAgents } from '../agents/loading.js';
import { Confirm } from './confirm.js';
import { contextPolicy, erase, evict, expiry, exported, fork, pin, prefetch, snapshot, trim } from './deeds.js';

/** @typedef {import('../../gateway.js').Json} Json */
/** @typedef {import('./deeds.js').Deed} Deed */

const DEEDS = /** @type {[string, (agent: Json) => Deed][]} */ ([
  ['Fork…', fork],
  ['Snapshot…', snapshot],
  ['Trim…', trim],
  ['Pin…', pin],
  ['Expires…', expiry],
  ['Full context…', contextPolicy],
  ['Prefetch…', prefetch],
  ['Evict from memory…', (agent) => evict(agent, 'hot')],
  ['Evict from disk…', (agent) => evict(agent, 'warm')],
  ['Evict everywhere…', (agent) => evict(agent, 'remote')],
  ['Export…', exported],
  ['Delete…', erase],
]);

/** @param {{agent: Json, onChanged: () => void}} props */
export function Actions({ agent, onChanged }) {
  const [deed, setDeed] = useState(/** @type {Deed | null} */ (null));
  const menu = useRef(/** @type {HTMLDetailsElement | null} */ (null));
  useEffect(() => {
    /** @param {Event} event */
    const elsewhere = (event) => {
      if (menu.current && !menu.current.contains(/** @type {Node} */ (event.target))) menu.current.open = false;
    };
    addEventListener('pointerdown', elsewhere);
    return () => removeEventListener('pointerdown', elsewhere);
  }, []);
  /** @param {(agent: Json) => Deed} make */
  const choose = (make) => {
    if (menu.current) menu.current.open = false;
    menu.current?.querySelector('summary')?.focus(); // where a dialog gives it back
    setDeed(make(agent));
  };
  /** @param {KeyboardEvent} event */
  const pressed = (event) => {
    if (event.key !== 'Escape' || !menu.current?.open) return;
    menu.current.open = false;
    menu.current.querySelector('summary')?.focus();
  };
  /** @param {Record<string, string>} given @param {boolean} here */
  const done = (given, here) => {
    const after = here ? deed?.after : undefined; // whoever has left stays where he is
    forgetAgents();
    if (here) setDeed(null);
    if (after === 'gone') location.hash = linkTo(['agents']);
    else if (after === 'fork') location.hash = linkTo(['agents', agent.key.model_id, given.new_agent_id]);
    else onChanged();
  };
  return html`<details class="menu" ref=${menu} onKeyDown=${pressed}><summary>Actions</summary>
      <ul class="plain">${DEEDS.map(([title, make]) => html`<li><button onClick=${() => choose(make)}>${
        make === pin && agent.pinned ? 'Unpin…' : title}</button></li>`)}</ul></details>
    ${deed && html`<${Confirm} deed=${deed} onDone=${done} onClose=${() => setDeed(null)} />`}`;
}

/**
 * A run as lanes, one for each agent: time goes down, through phases and rounds. Who speaks, who hears it, and under
 * each turn what the memory gave.
 *
 * Where there is no room for lanes the same stands below each other: each turn says whose it is and who hears it.
 */
import { html, useMemo } from '../../vendor/preact.js';
import { useFollowed } from '../../followed.js';
import { counted, number, total } from '../../format.js';
import { LongText, Name } from '../../parts.js';
import { useSoon } from '../../soon.js';
import { Report } from '../talk/report.js';
import { Outcome } from './outcome.js';

/** @typedef {import('../../gateway.js').Json} Json */
/** @typedef {import('./state.js').Run} Run */
/** @typedef {import('./state.js').Step} Step */
/** @typedef {import('./state.js').Row} Row */
/** @typedef {Map<string, number>} Places the lane of each agent, from 1 */

/**
 * @param {{run: Run, live?: boolean, memoryOf?: (agent: Json) => string}} props `live`: it goes on, so its end is
 *   shown; `memoryOf` links to a memory, "" where it is no longer
 */
export function Lanes({ run, live = false, memoryOf }) {
  const names = [...run.members.keys()];
  const places = useMemo(() => new Map(names.map((name, at) => [name, at + 1])), [names.join('\n')]);
  const agents = new Map((run.workflow?.agents ?? []).map((/** @type {Json} */ agent) => [agent.name, agent]));
  const box = useFollowed([run], live);
  return html`<div class="lanes-box" ref=${box} role="region" aria-label="What was said" tabindex="0">
    <div class="lanes" style=${{ '--lanes': Math.max(1, names.length) }}>
      <ul class="lane-row heads plain" aria-label="Agents">${[...run.members.values()].map((member) => html`<${Head}
        key=${member.name} member=${member} agent=${agents.get(member.name)} place=${places.get(member.name)}
        speaking=${run.speaking.has(member.name)} memoryOf=${memoryOf} />`)}</ul>
      ${run.phases.map((phase) => html`<${Phase} key=${phase.name} phase=${phase} places=${places} />`)}
      ${run.speaking.size > 0 && html`<${SpeakingNow} speaking=${run.speaking} places=${places} />`}
    </div>
  </div>`;
}

/**
 * An agent at the head of its lane.
 *
 * @param {{member: import('./state.js').Member, agent?: Json, place: number, speaking: boolean,
 *   memoryOf?: (agent: Json) => string}} props
 */
function Head({ member, agent, place, speaking, memoryOf }) {
  const named = html`<${Name} text=${member.name} />`;
  const memory = agent && memoryOf?.(agent);
  return html`<li class="cell head" style=${{ gridColumn: place }}>
    <strong>${memory ? html`<a href=${memory}>${named}</a>` : named}</strong>
    ${speaking && html` <span class="tier hot">speaking</span>`}
    <div class="quiet">${counted(member.turns, 'turn')}, ${counted(member.tokens, 'token')}${
      agent?.persists ? ', stays' : ''}</div>
  </li>`;
}

/** @param {{phase: import('./state.js').Phase, places: Places}} props */
function Phase({ phase, places }) {
  const before = useMemo(() => new WeakMap(), [places]);
  return useMemo(() => {
    const { name, rounds, outcome } = phase;
    /** @param {import('./state.js').Round} round */
    const drawn = (round) => { // what is the same object as before is not drawn again
      if (!before.has(round)) before.set(round, html`<${Round} key=${round.number} round=${round} places=${places} />`);
      return before.get(round);
    };
    return html`<section class="phase" aria-label=${name ? `Phase ${name}` : 'Introductions'}>
      <h2>${name ? html`Phase <${Name} text=${name} />` : 'Introductions'}</h2>
      ${rounds.map(drawn)}
      ${outcome && html`<${Outcome} told=${outcome} />`}
    </section>`;
  }, [phase, places]);
}

/** @param {{round: import('./state.js').Round, places: Places}} props */
function Round({ round, places }) {
  return useMemo(() => {
    const { began } = round;
    return html`<div class="round">
      ${began && html`<h3>Round ${number(began.round)} <${Channel} channel=${began.channel} />
        ${' '}<span class="quiet">${began.topology.replaceAll('_', ' ')}</span></h3>`}
      <ol class="plain">${round.rows.map((row, at) => html`<${BesideEachOther} key=${at} row=${row}
        places=${places} />`)}</ol>
    </div>`;
  }, [round, places]);
}

/** @param {{row: Row, places: Places}} props */
function BesideEachOther({ row, places }) {
  const { element, drawn } = useSoon();
  return useMemo(() => {
    if (!drawn) return html`<li class="lane-row soon" ref=${element}></li>`;
    return html`<li class="lane-row" ref=${element}>
      ${[...row.values()].map((step) => html`<${Done} step=${step} place=${places.get(step.agent_id)} />`)}
      ${marks(row).map(([name, text]) => html`<span class="cell mark" aria-hidden="true"
        style=${{ gridColumn: places.get(name) }} dir="auto">${text}</span>`)}
    </li>`;
  }, [row, places, drawn]);
}

/**
 * What stands in the lanes of those who heard something in a row, and did nothing else there.
 *
 * @param {Row} row
 * @returns {[string, string][]} agents and texts
 */
function marks(row) {
  /** @type {Map<string, string[]>} */
  const found = new Map();
  /** @param {string} name @param {string} text */
  const mark = (name, text) => found.set(name, [...(found.get(name) ?? []), text]);
  for (const step of row.values()) {
    for (const name of step.listeners ?? []) mark(name, `hears ${step.agent_id}`);
    for (const name of step.bystanders ?? []) mark(name, `learns that ${step.agent_id} whispered`);
  }
  return [...found].map(([name, texts]) => [name, texts.join('\n')]);
}

/** @param {{step: Step, place: number}} props */
function Done({ step, place }) {
  const { kind, agent_id: agent, note } = step;
  const text = kind === 'turn' ? step.text : note;
  return html`<article class=${`cell ${kind}`} style=${{ gridColumn: place }}>
    <p class="to"><strong><${Name} text=${agent} /></strong>${kind === 'turn' ? html`<${Audience} step=${step} />`
      : html`<span class="quiet"> ${note ? 'notes for itself' : 'took in what it had heard'}</span>`}</p>
    ${text && html`<${LongText} text=${text} piece=${2000} />`}
    <${Sources} step=${step} />
    <${Report} cache=${step.cache} usage=${text ? step.usage : undefined} timings=${step.timings}
      reason=${step.reason} replayed=${step.replayed} />
  </article>`;
}

/** @param {{step: Step}} props */
function Audience({ step: { listeners, bystanders, channel } }) {
  return html`<span class="quiet"> → ${listeners.length ? names(listeners) : 'nobody'}</span>
    ${' '}<${Channel} channel=${channel} />${bystanders.length > 0 && html`<span class="quiet"> ${names(bystanders)}
      ${' '}only ${bystanders.length === 1 ? 'learns' : 'learn'} of it</span>`}`;
}

/** @param {string[]} all */
function names(all) {
  return all.map((name, at) => html`${at ? ', ' : ''}<${Name} text=${name} />`);
}

/** @param {{channel: string}} props */
function Channel({ channel }) {
  if (!channel || channel === 'public') return null;
  const [kind, said] = channel === 'whisper' ? ['whisper', 'whispered'] : ['private', channel];
  return html`<span class=${`channel ${kind}`}>${said}</span>`;
}

/** Where a prompt's tokens came from. @param {{step: Step}} props */
function Sources({ step: { usage } }) {
  const cached = /** @type {[string, number][]} */ (Object.entries(usage.cached));
  const computed = Math.max(0, usage.prompt_tokens - total(usage.cached));
  const parts = [...cached, ['computed', computed]].filter(([, tokens]) => Number(tokens) > 0);
  if (!parts.length) return null;
  return html`<div class="bar-of sources" role="img" aria-label=${`Prompt tokens: ${parts.map(([from, tokens]) =>
    `${from} ${number(Number(tokens))}`).join(', ')}`}>${parts.map(([from, tokens]) => html`<span
      class=${`source ${from}`} style=${{ flexGrow: Number(tokens) }}></span>`)}</div>`;
}

/** @param {{speaking: Run['speaking'], places: Places}} props */
function SpeakingNow({ speaking, places }) {
  return html`<div class="lane-row now">${[...speaking].map(([agent, { text, cache }]) => html`<article key=${agent}
    class="cell turn" style=${{ gridColumn: places.get(agent) }} aria-busy="true">
    <p class="to"><strong><${Name} text=${agent} /></strong> <span class="quiet">is speaking</span></p>
    <${LongText} text=${text.length > 4000 ? `…${text.slice(-4000)}` : text} />
    ${cache && html`<${Report} cache=${cache} />`}
  </article>`)}</div>`;
}

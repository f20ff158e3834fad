/**
 * A run as its events tell of it. Pure: the view is drawn from it.
 *
 * A run is never changed: what an event changes is made anew, and all else stays the same object, so that what is drawn
 * of it need not be drawn again. Names are keys of maps, for they may be any.
 */

/** @typedef {import('../../gateway.js').Json} Json */
/**
 * What an agent has done, a turn or a listening, and is durable.
 *
 * @typedef {Json & {kind: 'turn' | 'listening'}} Step
 */
/** @typedef {Map<string, Step>} Row what happened beside each other, by agent */
/**
 * `began` is PhaseStarted; the round 0, before the first, has none.
 *
 * @typedef {{number: number, began: Json | null, rows: Row[]}} Round
 */
/** @typedef {{name: string, rounds: Round[], outcome: Json | null}} Phase */
/** @typedef {{name: string, tokens: number, turns: number}} Member */
/** @typedef {{text: string, cache: Json | null}} Saying */
/**
 * @typedef {object} Run
 * @property {Json} workflow as it is, or as it began; null before the first event
 * @property {Map<string, Member>} members in the order of the definition
 * @property {Phase[]} phases
 * @property {Map<string, Saying>} speaking who speaks now
 * @property {number} sequence of the last event of the log
 * @property {boolean} finished
 * @property {Json} totals WorkflowTotals up to the last step; null before the first
 * @property {string} latest the time of the last event, "" before the first
 */

/** Stands for what a lost connection has cost of an utterance that goes on. */
export const GAP = '… ';

/** @returns {Run} */
export function newRun() {
  return {
    workflow: null, members: new Map(), phases: [], speaking: new Map(), sequence: 0, finished: false,
    totals: null, latest: '',
  };
}

/**
 * A run and one more event. What is known already changes nothing.
 *
 * @param {Run} run
 * @param {Json} event
 * @returns {Run}
 */
export function added(run, event) {
  if (run.finished) return run;
  // What is not in the log has the number of the event before it: growing text, and the end of a run that failed.
  const logged = !event.agent_speaking && !event.agent_delta && !event.finished;
  if (logged && event.sequence <= run.sequence) return run;
  const next = {
    ...run,
    sequence: Math.max(run.sequence, event.sequence),
    latest: event.time ?? run.latest,
  };
  if (event.started) return begun(next, event.started.workflow);
  if (event.phase_started) return entered(next, event.phase_started);
  if (event.agent_speaking) {
    const { agent_id: agent, cache } = event.agent_speaking;
    return said(next, agent, { text: '', cache });
  }
  if (event.agent_delta) {
    const { agent_id: agent, text } = event.agent_delta;
    const saying = run.speaking.get(agent) ?? { text: GAP, cache: null }; // it had begun before this was followed
    return said(next, agent, { ...saying, text: saying.text + text });
  }
  if (event.agent_spoke) return done(next, { kind: 'turn', ...event.agent_spoke });
  if (event.agent_listened) return done(next, { kind: 'listening', ...event.agent_listened });
  if (event.phase_outcome) {
    const outcome = event.phase_outcome;
    return withPhase(next, outcome.phase, (phase) => ({ ...phase, outcome }));
  }
  if (event.finished) return { ...begun(next, event.finished.workflow), speaking: new Map(), finished: true };
  return next; // of a later version
}

/**
 * A run as the gateway describes it, when no more events come.
 *
 * @param {Run} run
 * @param {Json} workflow
 * @returns {Run}
 */
export function settled(run, workflow) {
  return { ...begun(run, workflow), speaking: workflow.state === 'running' ? run.speaking : new Map() };
}

/**
 * A run that is followed anew: of what is being said something may be missing, and it may go on where it had failed.
 *
 * @param {Run} run
 * @returns {Run}
 */
export function followedAgain(run) {
  const speaking = new Map([...run.speaking].map(([agent, saying]) => [agent, { ...saying, text: GAP }]));
  return { ...run, speaking, finished: false };
}

/**
 * A run that was resumed: no event of its log says that it goes on.
 *
 * @param {Run} run
 * @returns {Run}
 */
export function goesOn(run) {
  return run.workflow ? { ...run, workflow: { ...run.workflow, state: 'running', error: '' } } : run;
}

/**
 * @param {Run} run
 * @param {Json} workflow
 */
function begun(run, workflow) {
  const members = new Map(run.members);
  for (const { name } of workflow.agents) if (!members.has(name)) members.set(name, newMember(name));
  return { ...run, workflow, members, totals: workflow.totals ?? run.totals };
}

/** @param {string} name @returns {Member} */
function newMember(name) {
  return { name, tokens: 0, turns: 0 };
}

/**
 * @param {Run} run
 * @param {string[]} names
 */
function knowing(run, names) {
  const unknown = names.filter((name) => !run.members.has(name));
  if (!unknown.length) return run;
  const members = new Map(run.members);
  for (const name of unknown) members.set(name, newMember(name));
  return { ...run, members };
}

/**
 * @param {Run} run
 * @param {string} agent
 * @param {Saying} saying
 */
function said(run, agent, saying) {
  return { ...knowing(run, [agent]), speaking: new Map(run.speaking).set(agent, saying) };
}

/**
 * @param {Run} run
 * @param {Json} began
 */
function entered(run, began) {
  return withRound(knowing(run, began.agents), began.phase, began.round, (round) => ({ ...round, began }));
}

/**
 * @param {Run} run
 * @param {string} name
 * @param {(phase: Phase) => Phase} change
 * @returns {Run}
 */
function withPhase(run, name, change) {
  const at = run.phases.findIndex((phase) => phase.name === name);
  const phases = [...run.phases];
  if (at >= 0) phases[at] = change(phases[at]);
  else if (name) phases.push(change({ name, rounds: [], outcome: null }));
  else phases.unshift(change({ name, rounds: [], outcome: null })); // introductions come first, whatever ended before
  return { ...run, phases };
}

/**
 * @param {Run} run
 * @param {string} name
 * @param {number} number
 * @param {(round: Round) => Round} change
 */
function withRound(run, name, number, change) {
  return withPhase(run, name, (phase) => {
    const at = phase.rounds.findIndex((round) => round.number === number);
    const rounds = [...phase.rounds];
    if (at < 0) rounds.push(change({ number, began: null, rows: [] }));
    else rounds[at] = change(rounds[at]);
    return { ...phase, rounds };
  });
}

/**
 * What has the same step stands beside each other, but for what an agent did twice in it.
 *
 * @param {Run} run
 * @param {Json} told
 */
function done(run, told) {
  const agent = told.agent_id;
  const known = knowing(run, [agent, ...told.listeners ?? [], ...told.bystanders ?? []]);
  const member = /** @type {Member} */ (known.members.get(agent));
  const step = /** @type {Step} */ (told);
  const next = withRound(known, told.phase, told.round, (round) => {
    const at = round.rows.findIndex((row) => [...row.values()][0].step === step.step && !row.has(agent));
    if (at < 0) return { ...round, rows: [...round.rows, new Map([[agent, step]])] };
    return { ...round, rows: round.rows.with(at, new Map(round.rows[at]).set(agent, step)) };
  });
  const speaking = new Map(next.speaking);
  speaking.delete(agent);
  const tokens = told.usage.prompt_tokens + told.usage.completion_tokens;
  const turns = member.turns + (step.kind === 'turn' ? 1 : 0);
  const members = new Map(next.members).set(agent, { ...member, tokens, turns });
  return { ...next, speaking, members, totals: told.totals };
}

/** What memory saved in a run, in tokens. */
import { total } from '../../format.js';

/** @typedef {import('./state.js').Run} Run */
/** @typedef {import('./state.js').Step} Step */

/**
 * Counts of a run. `resent` is what a server without memory prefills: the whole ledger for each turn and each note. A
 * listener costs nothing there, so `prefilled`, which has all steps, may be more where many hear and few speak. `again`
 * are tokens of ledgers that were computed another time, because of a cache miss.
 *
 * @param {Run} run
 */
export function totals(run) {
  const sums = {
    turns: 0,
    notes: 0,
    listenings: 0,
    replayed: 0,
    resent: 0,
    prefilled: 0,
    reused: 0,
    again: 0,
    generated: 0,
    seconds: 0,
  };
  for (const step of steps(run)) {
    const { prompt_tokens: prompt, completion_tokens: generated, cached } = step.usage;
    const reused = total(cached);
    if (step.kind === 'turn') sums.turns += 1;
    else if (step.note) sums.notes += 1;
    else sums.listenings += 1;
    if (step.kind === 'turn' || step.note) sums.resent += prompt;
    sums.reused += reused;
    sums.prefilled += Math.max(0, prompt - reused);
    sums.generated += generated;
    if (step.cache.miss_reason) sums.again += Math.max(0, Math.min(step.before, prompt) - reused);
    if (step.replayed) sums.replayed += 1;
  }
  sums.seconds = run.first ? Math.max(0, (Date.parse(run.latest) - Date.parse(run.first)) / 1000) : 0;
  return sums;
}

/**
 * @param {Run} run
 * @returns {Generator<Step>}
 */
function* steps(run) {
  for (const phase of run.phases) {
    for (const round of phase.rounds) {
      for (const row of round.rows) yield* row.values();
    }
  }
}

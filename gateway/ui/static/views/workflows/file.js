/** A workflow's file: pasted or chosen, checked, and run. */
import { html, useRef, useState } from '../../vendor/preact.js';
import { counted } from '../../format.js';
import { explained, json, newTurn } from '../../gateway.js';
import { notify } from '../../notices.js';
import { Name, Problem, useHere } from '../../parts.js';
import { linkTo } from '../../routing.js';
import { begin } from './beginning.js';

/** @typedef {import('../../gateway.js').Json} Json */
/** @typedef {{target: HTMLTextAreaElement & HTMLInputElement}} Change */

const EXAMPLE = `\
workflow: greeting
agents: {host: {system: You are the host.}, guest: {}}
phases: [{name: hello, agents: [host, guest], prompts: Greet the other.}]`;

export function NewRun() {
  const [text, setText] = useState('');
  const [settings, setSettings] = useState('');
  const [checked, setChecked] = useState(/** @type {Json | null} */ (null));
  const [error, setError] = useState(/** @type {unknown} */ (null));
  const [busy, setBusy] = useState(false);
  const here = useHere();
  const latest = useRef('');
  latest.current = JSON.stringify([text, settings]);
  const area = useRef(/** @type {HTMLTextAreaElement | null} */ (null));
  const name = useRef({ of: '', request: '' }); // a run that may have begun is not begun again by a second try

  const unchecked = () => { setChecked(null); setError(null); };
  /** @param {string} content */
  const changed = (content) => { setText(content); unchecked(); };
  /** @param {unknown} failure */
  const failed = (failure) => {
    if (here.current) setError(failure);
    else notify(`Check or run a file: ${explained(failure)}`, true);
  };
  /** @param {() => Promise<void>} work */
  const trying = async (work) => {
    setBusy(true);
    setError(null);
    try {
      await work();
    } catch (failure) {
      failed(failure);
    }
    setBusy(false);
  };
  const check = async () => {
    const asked = latest.current;
    const body = { definition_yaml: text, variables: variables(settings) };
    const found = await json('POST', 'v1/workflows/check', { body });
    if (latest.current === asked) setChecked(found);
    return found;
  };
  const run = async () => {
    const asked = latest.current;
    const found = await check();
    if (found.mistakes.length) {
      if (!here.current) notify('The file has mistakes, and was not run.', true);
      return;
    }
    if (name.current.of !== asked) name.current = { of: asked, request: newTurn() };
    const id = await begin(text, variables(settings), name.current.request);
    if (here.current) location.hash = linkTo(['workflows', 'run', id]);
    else notify(`${found.name} has begun; it is among the workflows.`);
  };
  return html`<section class="narrow">
    <p class="crumbs"><a href=${linkTo(['workflows'])}>Workflows</a></p>
    <h1>Check or run a file</h1>
    <form class="fields" onSubmit=${(/** @type {Event} */ e) => {
      e.preventDefault();
      trying(async () => { await check(); });
    }}>
      <label>File <input type="file" accept=".yaml,.yml,text/plain" onChange=${async (/** @type {Change} */ e) => {
        const input = e.target;
        const file = input.files?.[0];
        try {
          if (file) changed(await file.text());
        } catch (failure) {
          failed(failure);
        }
        input.value = ''; // so that the same file can be read again
      }} /></label>
      <label>Workflow, in YAML <textarea ref=${area} rows="16" spellcheck=${false} class="code" required value=${text}
        placeholder=${EXAMPLE}
        onInput=${(/** @type {Change} */ e) => changed(e.target.value)}></textarea></label>
      <details><summary>Variables</summary>
        <label>Values, a line for each: <code>name=value</code> <textarea rows="3" spellcheck=${false} class="code"
          value=${settings} onInput=${(/** @type {Change} */ e) => {
            setSettings(e.target.value);
            unchecked();
          }}></textarea></label></details>
      <div class="row"><button disabled=${busy || !text}>Check</button>
        <button type="button" class="primary" disabled=${busy || !text} onClick=${() => trying(run)}>Run</button></div>
    </form>
    ${error && html`<${Problem} error=${error} />`}
    <div role="status">${checked && html`<${Checked} found=${checked} onGo=${(/** @type {Json} */ mistake) =>
      area.current && select(area.current, mistake.line, mistake.column)} />`}</div>
  </section>`;
}

/** @param {{found: Json, onGo: (mistake: Json) => void}} props */
function Checked({ found, onGo }) {
  const { mistakes } = found;
  if (!mistakes.length) {
    return html`<p><strong><${Name} text=${found.name} /></strong> can be run: ${
      counted(found.agents.length, 'agent')} in
      ${' '}${counted(found.phases.length, 'phase')}.</p>`;
  }
  return html`<h2>${counted(mistakes.length, 'mistake')}</h2>
    <ul class="mistakes plain">${mistakes.map((/** @type {Json} */ mistake) => html`<li>
      ${mistake.line > 0
        ? html`<button class="link" onClick=${() => onGo(mistake)}>Line ${mistake.line}, column ${
          mistake.column}</button>`
        : html`<span class="quiet">The whole file</span>`} <code><bdi>${mistake.field}</bdi></code>: <span
        dir="auto">${mistake.problem}</span></li>`)}</ul>`;
}

/**
 * @param {string} text lines of "name=value"
 * @returns {Record<string, string>}
 * @throws {Error} for a line that is none
 */
export function variables(text) {
  const given = new Map();
  for (const line of text.split('\n').filter((each) => each.trim())) {
    const at = line.indexOf('=');
    const name = line.slice(0, at).trim();
    if (at < 0 || !name) throw new Error(`Write name=value, and not ${explained(line.slice(0, 100))}`);
    if (given.has(name)) throw new Error(`${name} is given more than once.`);
    given.set(name, line.slice(at + 1));
  }
  return Object.fromEntries(given);
}

/**
 * Put the caret where a mistake is; lines and columns are counted from 1, columns in characters.
 *
 * @param {HTMLTextAreaElement} area
 * @param {number} line
 * @param {number} column
 */
function select(area, line, column) {
  const lines = area.value.split('\n');
  const before = lines.slice(0, line - 1).reduce((sum, each) => sum + each.length + 1, 0);
  const wrong = lines[line - 1] ?? '';
  area.focus();
  area.setSelectionRange(before + [...wrong].slice(0, column - 1).join('').length, before + wrong.length);
  area.scrollTop = ((line - 3) / lines.length) * area.scrollHeight;
}

/** The frame of the page: navigation, theme, the key, and the view that the address names. */
import { html, render, useEffect, useState } from './vendor/preact.js';
import { KeyQuestion, keep, useKeyState } from './key.js';
import { linkTo, usePlace } from './routing.js';
import { Notices } from './notices.js';
import { VIEWS } from './views/index.js';

const THEMES = /** @type {const} */ (['system', 'light', 'dark']);
const THEME = 'agentmem.theme';

function Frame() {
  const place = usePlace();
  const view = VIEWS.find((each) => each.name === place.view) ?? VIEWS[0];
  useEffect(() => {
    document.title = `${view.title} · Agentmem`;
  }, [view]);
  return html`
    <a class="skip" href="#main" onClick=${skip}>To the content</a>
    <header class="bar">
      <a class="brand" href=${linkTo([VIEWS[0].name])}>Agentmem</a>
      <nav aria-label="Views">
        ${VIEWS.map((each) => html`<a href=${linkTo([each.name])} aria-current=${each === view ? 'page' : undefined}
          >${each.title}</a>`)}
      </nav>
      <span class="tools"><${KeyState} /><${Theme} /></span>
    </header>
    <main id="main" tabindex="-1"><${view.View} key=${view.name} place=${place} /></main>
    <${Notices} />
    <${KeyQuestion} />`;
}

/** @param {Event} event */
function skip(event) {
  event.preventDefault(); // the address is the view's
  document.getElementById('main')?.focus();
}

function KeyState() {
  const { kept } = useKeyState();
  if (!kept) return null;
  return html`<span class="quiet">API key in this tab</span>
    <button class="link" onClick=${() => keep('')}>Forget it</button>`;
}

function Theme() {
  const [theme, setTheme] = useState(() => localStorage.getItem(THEME) ?? 'system');
  useEffect(() => {
    document.documentElement.dataset.theme = theme;
    localStorage.setItem(THEME, theme);
  }, [theme]);
  return html`<label class="theme"><span class="unseen">Theme</span>
    <select value=${theme} onChange=${(/** @type {{target: HTMLSelectElement}} */ e) => setTheme(e.target.value)}>
      ${THEMES.map((each) => html`<option value=${each} selected=${each === theme}>${each}</option>`)}
    </select></label>`;
}

render(html`<${Frame} />`, /** @type {HTMLElement} */ (document.getElementById('page')));

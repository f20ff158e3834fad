/** Markdown as elements: marked finds the tokens, and each text is a text node. Nothing is loaded, no markup is run. */
import { html, useMemo, useRef } from './vendor/preact.js';
import { Marked } from './vendor/marked.js';
import { Copy } from './copy.js';
import { LongText } from './parts.js';

/** @typedef {import('./vendor/marked.js').Token} Token */

const LONGEST = 10_000; // characters: in some texts the time grows by the square
const MOST_CELLS = 4000; // of all tables of a text: short rows are filled up to the width of the header
const AT_ONCE = 500; // milliseconds for all texts that are drawn together, as a history is
const PAUSE = 9; // times as long as the last reading took, until a growing text is read again
const DEEPEST = 20;
const SCHEMES = ['http:', 'https:', 'mailto:'];
const marked = new Marked({ gfm: true, breaks: true }, { tokenizer: { table } });
let left = AT_ONCE;
let cells = 0;

/** @param {{text: string, growing?: boolean}} props */
export function Markdown({ text, growing = false }) {
  const last = useRef({ read: 0, tokens: /** @type {Token[] | null} */ ([]), at: 0, took: 0 });
  const tokens = useMemo(() => {
    const began = performance.now();
    const { read, at, took } = last.current;
    if (!growing || text.length < read || began - at >= PAUSE * took) {
      const found = lexed(text);
      const ended = performance.now();
      last.current = { read: text.length, tokens: found, at: ended, took: ended - began };
    }
    return last.current.tokens;
  }, [text, growing]);
  if (!tokens) return html`<${LongText} text=${text} />`;
  return html`<div class="markdown" dir="auto">${blocks(tokens, 0)}</div>`;
}

/** @param {string} text @returns {Token[] | null} null if it would take too long, so it stays text */
export function lexed(text) {
  if (text.length > LONGEST || left <= 0) return null;
  const began = performance.now();
  cells = 0;
  try {
    return marked.lexer(text);
  } catch {
    return null; // it is nested too deeply
  } finally {
    if (left === AT_ONCE) setTimeout(() => { left = AT_ONCE; }); // when all are drawn
    left -= performance.now() - began;
  }
}

/** @param {string} source @returns {false | undefined} false where marked may look for a table */
function table(source) {
  const lines = source.split(/\n[ \t]*\n/, 1)[0].split('\n');
  if (!/^[ \t|:-]+$/.test(lines[1])) return false;
  cells += lines[0].split('|').length * lines.length;
  return cells > MOST_CELLS ? undefined : false;
}

/** @param {Token[] | undefined} tokens @param {number} depth @returns {unknown} */
function blocks(tokens = [], depth) {
  return tokens.map((token) => (depth > DEEPEST ? token.raw : block(token, depth + 1)));
}

/** @param {Token} token @param {number} depth @returns {unknown} */
function block(token, depth) {
  switch (token.type) {
    case 'space':
      return null;
    case 'paragraph':
      return html`<p>${inline(token, depth)}</p>`;
    case 'text':
      return inline(token, depth);
    case 'heading':
      return html`<${`h${Math.min(6, (token.depth ?? 1) + 2)}`}>${inline(token, depth)}</>`;
    case 'code':
      return html`<${Code} text=${token.text} language=${token.lang} />`;
    case 'blockquote':
      return html`<blockquote>${blocks(token.tokens, depth)}</blockquote>`;
    case 'list':
      return token.ordered
        ? html`<ol start=${token.start || 1}>${items(token, depth)}</ol>`
        : html`<ul>${items(token, depth)}</ul>`;
    case 'table':
      return html`<${Table} token=${token} depth=${depth} />`;
    case 'hr':
      return html`<hr />`;
    case 'checkbox':
      return token.checked ? '☑ ' : '☐ ';
    default:
      return token.raw; // markup, and definitions of links
  }
}

/** @param {Token} list @param {number} depth */
function items({ items: each = [] }, depth) {
  return each.map((item) => html`<li>${blocks(item.tokens, depth)}</li>`);
}

/** @param {Token} token @param {number} depth @returns {unknown} */
function inline({ tokens, text }, depth) {
  if (!tokens) return text;
  return tokens.map((token) => (depth > DEEPEST ? token.raw : span(token, depth + 1)));
}

const TAGS = /** @type {Record<string, string>} */ ({ strong: 'strong', em: 'em', del: 'del' });

/** @param {Token} token @param {number} depth @returns {unknown} */
function span(token, depth) {
  const { type, raw, text, href = '' } = token;
  if (TAGS[type]) return html`<${TAGS[type]}>${inline(token, depth)}</>`;
  switch (type) {
    case 'text':
      return inline(token, depth);
    case 'escape':
      return text;
    case 'br':
      return html`<br />`;
    case 'codespan':
      return html`<code>${text}</code>`;
    case 'link':
      return safe(href) ? html`<a href=${href} title=${href} target="_blank" rel="noopener noreferrer">${
        inline(token, depth)}</a>` : raw;
    case 'image': // of another host, which would learn who reads this
      return safe(href) ? html`<a href=${href} title=${href} target="_blank" rel="noopener noreferrer">image: ${
        text || href}</a>` : raw;
    default:
      return raw;
  }
}

/** @param {string} href */
function safe(href) {
  try {
    return SCHEMES.includes(new URL(href).protocol);
  } catch {
    return false;
  }
}

/** @param {{text: string, language?: string}} props */
function Code({ text, language }) {
  return html`<figure class="listing"><figcaption><span>${language || 'text'}</span><${Copy} text=${text} what="code" />
    </figcaption><pre tabindex="0"><code>${text}</code></pre></figure>`;
}

/** @param {{token: Token, depth: number}} props */
function Table({ token: { header = [], rows = [] }, depth }) {
  const side = (/** @type {string | null} */ align) => (align ? { textAlign: align } : undefined);
  return html`<div class="scrolls" tabindex="0" role="region" aria-label="Table"><table>
    <thead><tr>${header.map((cell) => html`<th scope="col" style=${side(cell.align)}>${
      cell.tokens.map((each) => span(each, depth))}</th>`)}</tr></thead>
    <tbody>${rows.map((row) => html`<tr>${row.map((cell) => html`<td style=${side(cell.align)}>${
      cell.tokens.map((each) => span(each, depth))}</td>`)}</tr>`)}</tbody></table></div>`;
}

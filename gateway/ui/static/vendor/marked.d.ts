// Types of what the page uses of marked.js; ours, for tsc.
export interface Token {
  type: string;
  raw: string;
  text?: string;
  tokens?: Token[];
  items?: Token[];
  depth?: number;
  lang?: string;
  href?: string;
  ordered?: boolean;
  start?: number | string;
  checked?: boolean;
  header?: Cell[];
  rows?: Cell[][];
}
export interface Cell {
  tokens: Token[];
  align: string | null;
}
/** `false` leaves it to marked, `undefined` finds none. */
export interface Tokenizer {
  table(source: string): false | undefined;
}
export class Marked {
  constructor(options: { gfm: boolean; breaks: boolean }, extension: { tokenizer: Tokenizer });
  lexer(text: string): Token[];
}

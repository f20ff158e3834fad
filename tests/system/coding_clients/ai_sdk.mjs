// A turn by the AI SDK's default provider, which refers to items that the server has made.
// Usage: ai_sdk.mjs NODE_MODULES URL PROMPT. What was said before is in session.json of the working directory.

import { execSync } from 'node:child_process';
import { existsSync, readFileSync, writeFileSync } from 'node:fs';
import { createRequire } from 'node:module';

const SESSION = 'session.json';
const [packages, url, prompt] = process.argv.slice(2);
const require = createRequire(`${packages}/`);
const { createOpenAI } = require('@ai-sdk/openai');
const { generateText, jsonSchema, stepCountIs, tool } = require('ai');
const openai = createOpenAI({ baseURL: `${url}/v1`, apiKey: 'none' });
const shell = tool({
  description: 'Runs a command.',
  inputSchema: jsonSchema({ type: 'object', properties: { command: { type: 'string' } }, required: ['command'] }),
  execute: async ({ command }) => execSync(command).toString(),
});
const messages = existsSync(SESSION) ? JSON.parse(readFileSync(SESSION, 'utf8')) : [];
messages.push({ role: 'user', content: prompt });
const { text, response } = await generateText({
  model: openai('qwen'), tools: { shell }, messages, maxRetries: 0, stopWhen: stepCountIs(3),
});
writeFileSync(SESSION, JSON.stringify([...messages, ...response.messages]));
console.log(text);

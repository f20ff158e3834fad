// A conversation of five turns with a tool, by the AI SDK's default provider: from its second request on it refers to
// items that the server has made.

import { createOpenAI } from '@ai-sdk/openai';
import { generateText, jsonSchema, stepCountIs, tool } from 'ai';

const openai = createOpenAI({ baseURL: process.argv[2], apiKey: 'none' });
const shell = tool({
  description: 'Runs a command.',
  inputSchema: jsonSchema({ type: 'object', properties: { command: { type: 'string' } }, required: ['command'] }),
  execute: async ({ command }) => `ran ${command}`,
});
const messages = [];
for (let turn = 1; turn <= 5; turn += 1) {
  messages.push({ role: 'user', content: `Please run it, for the ${turn}. time.` });
  const { text, response } = await generateText({
    model: openai('scripted'), tools: { shell }, messages, maxRetries: 0, stopWhen: stepCountIs(3),
  });
  messages.push(...response.messages);
  console.log(text);
}

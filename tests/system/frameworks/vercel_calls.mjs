// Vercel's AI SDK: what the guide's sample leaves out.
import assert from "node:assert/strict";
import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { APICallError, Output, generateText, jsonSchema, stepCountIs, streamText, tool } from "ai";

const baseURL = `${process.env.AGENTMEM_URL}/v1`;
const apiKey = process.env.AGENTMEM_KEY;
const openai = (key = apiKey) =>
  createOpenAICompatible({
    name: "agentmem",
    baseURL,
    apiKey: key,
    includeUsage: true,
    supportsStructuredOutputs: true,
  });
const anthropic = (key = apiKey) => createAnthropic({ baseURL, apiKey: key });

const weather = tool({
  description: "How the weather is.",
  inputSchema: jsonSchema({ type: "object", properties: { city: { type: "string" } }, required: ["city"] }),
  execute: async () => "rain",
});
const alarm = jsonSchema({
  type: "object",
  properties: { at: { enum: [7, 8] } },
  required: ["at"],
  additionalProperties: false,
});

async function converse(model) {
  const system = `Conversation ${crypto.randomUUID()}.`; // as other_beginning in expecting.py
  const messages = [{ role: "user", content: "The key is in the cellar." }];
  const first = await generateText({ model, system, messages, temperature: 0, maxOutputTokens: 100 });
  messages.push(...first.response.messages, { role: "user", content: "Where is the key?" });
  const second = streamText({ model, system, messages, temperature: 0, maxOutputTokens: 100 });
  let said = "";
  for await (const part of second.textStream) said += part;
  assert.match(said, /cellar/);
  assert.ok((await second.usage).cachedInputTokens > 0);
}

async function withTools(model) {
  const asked = { model, prompt: "hi", tools: { get_weather: weather }, stopWhen: stepCountIs(3) };
  const result = await generateText(asked);
  assert.equal(result.text, "It rains in Paris!");
  assert.equal(result.steps.length, 2);
  assert.ok(result.steps[1].usage.cachedInputTokens > 0);
  const streamed = streamText(asked);
  await streamed.consumeStream();
  assert.equal(await streamed.text, "It rains in Paris!");
}

async function refused(provider) {
  const asked = { prompt: "hi", maxRetries: 0 };
  const tooLong = "boat ".repeat(9000);
  for (const [more, status, words] of [
    [{ model: provider("wrong")("demo") }, 401, /key/],
    [{ model: provider()("gpt-9") }, 404, /demo/],
    [{ model: provider()("demo"), prompt: tooLong }, 400, /prompt is too long/],
  ]) {
    const error = await generateText({ ...asked, ...more }).catch((raised) => raised);
    assert.ok(APICallError.isInstance(error), String(error));
    assert.equal(error.statusCode, status);
    assert.match(error.message, words);
  }
}

for (const provider of [openai, anthropic]) {
  await converse(provider()("demo"));
  await withTools(provider()("qwen"));
  await refused(provider);
}
const { output } = await generateText({ model: openai()("qwen"), prompt: "hi", output: Output.object({ schema: alarm }) });
assert.ok([7, 8].includes(output.at));

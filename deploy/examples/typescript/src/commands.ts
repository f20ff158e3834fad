// What the commands do.
import { randomUUID } from "node:crypto";
import { type FileHandle, open, rename, rm } from "node:fs/promises";
import type { MessageInitShape } from "@bufbuild/protobuf";
import type { CallOptions } from "@connectrpc/connect";
import { type Agentmem, retrying } from "./client.js";
import type { ImportAgentRequestSchema } from "./stubs/agentmem/v1/agent_pb.js";
import type { Finished, GenerateRequestSchema } from "./stubs/agentmem/v1/inference_pb.js";
import { Tier } from "./stubs/agentmem/v1/types_pb.js";

const CHUNK_BYTES = 256 * 1024;
const UNARY_MS = 60_000;

export interface Context {
  client: Agentmem;
  model: string;
  /** Ends what runs. */
  signal: AbortSignal;
}

export interface Turn {
  /** A turn that was committed under it is replayed, and nothing is computed. */
  requestId: string;
  maxTokens: number;
  ignoreEos: boolean;
}

/** One turn, whose answer is written as it comes. It is made again under the same id, which cannot double it. */
export async function generate({ client, model, signal }: Context, agent: string, text: string, turn: Turn) {
  const request: MessageInitShape<typeof GenerateRequestSchema> = {
    key: { agentId: agent, modelId: model },
    requestId: turn.requestId,
    input: {
      case: "append",
      value: { content: { case: "messages", value: { messages: [{ role: "user", content: text }] } } },
    },
    maxTokens: turn.maxTokens,
    sampling: { temperature: 0, ignoreEos: turn.ignoreEos },
  };
  const options = named(turn.requestId, signal);
  let shown = ""; // of all attempts together
  const { usage, version, replayed } = await retrying(signal, async () => {
    let answer = "";
    let finished: Finished | undefined;
    for await (const { event } of client.inference.generate(request, options)) {
      if (event.case === "finished") finished = event.value;
      if (event.case !== "delta") continue;
      answer += event.value.text;
      if (shown.startsWith(answer)) continue; // again, after an attempt that broke off
      if (!answer.startsWith(shown)) {
        process.stdout.write("\n"); // the answer is another one now
        shown = "";
      }
      process.stdout.write(answer.slice(shown.length));
      shown = answer;
    }
    if (answer !== shown) process.stdout.write(`\n${answer}`); // shorter than what an earlier attempt showed
    return finished!; // without it the stream ends with an error
  });
  const reused = (usage?.cached ?? []).reduce((sum, { tokens }) => sum + tokens, 0);
  const told = `reused ${reused} tokens, generated ${usage?.completionTokens}, version ${version?.version}`;
  process.stderr.write(`\n[${told}${replayed ? ", replayed" : ""}]\n`);
}

/** The agents, and where their KV is. */
export async function list({ client, signal }: Context) {
  for (let pageToken = ""; ; ) {
    const page = await retrying(signal, () => client.agents.listAgents({ pageToken }, named(randomUUID(), signal, UNARY_MS)));
    for (const { key, tokens, turns, tier } of page.agents) {
      const place = Tier[tier].toLowerCase();
      process.stdout.write(`${key?.agentId}\t${key?.modelId}\t${tokens} tokens\t${turns} turns\t${place}\n`);
    }
    pageToken = page.nextPageToken;
    if (!pageToken) return;
  }
}

/** A second agent with the same memory. */
export async function fork({ client, model, signal }: Context, agent: string, name: string) {
  const request = { key: { agentId: agent, modelId: model }, newAgentId: name };
  const options = named(randomUUID(), signal, UNARY_MS);
  const made = (await retrying(signal, () => client.agents.forkAgent(request, options))).agent;
  process.stdout.write(`${made?.key?.agentId}: ${made?.tokens} tokens, version ${made?.version?.version}\n`);
}

/** The agent as a file, which is there when it is whole. */
export async function exportAgent({ client, model, signal }: Context, agent: string, path: string) {
  const request = { key: { agentId: agent, modelId: model } };
  const part = `${path}.${randomUUID()}.part`;
  try {
    const bytes = await retrying(signal, async () => {
      const file = await open(part, "w", 0o600); // it holds all that the agent was told
      try {
        let size = 0;
        for await (const { chunk } of client.agents.exportAgent(request, named(randomUUID(), signal))) {
          await file.writeFile(chunk);
          size += chunk.length;
        }
        await file.sync();
        return size;
      } finally {
        await file.close();
      }
    });
    await rename(part, path);
    process.stdout.write(`${path}: ${bytes} bytes\n`);
  } finally {
    await rm(part, { force: true });
  }
}

/** An agent of such a file; without a name it has that of the file. */
export async function importAgent({ client, signal }: Context, path: string, agent = "") {
  const made = await retrying(signal, async () => {
    const file = await open(path);
    try {
      return (await client.agents.importAgent(chunks(file, agent), named(randomUUID(), signal))).agent;
    } finally {
      await file.close();
    }
  });
  const { key, tokens, warmTokens } = made!;
  process.stdout.write(`${key?.agentId} on ${key?.modelId}: ${tokens} tokens, ${warmTokens} with KV\n`);
}

async function* chunks(file: FileHandle, agent: string): AsyncGenerator<MessageInitShape<typeof ImportAgentRequestSchema>> {
  yield { part: { case: "key", value: { agentId: agent } } };
  for await (const chunk of file.createReadStream({ highWaterMark: CHUNK_BYTES, autoClose: false })) {
    yield { part: { case: "chunk", value: chunk } };
  }
}

/** A call that the gateway's logs know by `id`. */
function named(id: string, signal: AbortSignal, timeoutMs?: number): CallOptions {
  return { headers: { "x-request-id": id }, signal, ...(timeoutMs && { timeoutMs }) };
}

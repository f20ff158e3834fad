#!/usr/bin/env node
// A small command line over Agentmem's gRPC door; see README.md beside it.
import { randomUUID } from "node:crypto";
import { open, rename, rm } from "node:fs/promises";
import { parseArgs } from "node:util";
import { Client, describe, retrying, wasCancelled } from "./client.js";

const CHUNK_BYTES = 256 * 1024;
const USAGE = `usage: node agentmem.js [options] COMMAND
  generate AGENT TEXT   one turn: TEXT is appended as a user's message, the answer streams; Ctrl-C cancels
  list                  the agents, and where their KV is
  fork AGENT NEW        a second agent with the same memory
  export AGENT FILE     the agent as one safetensors file
  import FILE [AGENT]   an agent from such a file
options: --address HOST:PORT, --ca FILE (TLS), --model NAME, --max-tokens N, --temperature T, --ignore-eos
environment: AGENTMEM_ADDRESS, AGENTMEM_CA, AGENTMEM_API_KEY (sent as a bearer token), AGENTMEM_PROTOS
`;
const OPTIONS = {
  address: { type: "string", default: process.env.AGENTMEM_ADDRESS ?? "127.0.0.1:50051" },
  ca: { type: "string", default: process.env.AGENTMEM_CA },
  model: { type: "string", default: "demo" },
  "max-tokens": { type: "string", default: "200" },
  temperature: { type: "string", default: "0" },
  "ignore-eos": { type: "boolean", default: false },
};

/** The call that Ctrl-C ends. */
let running;

async function generate(client, options, agent, text) {
  const request = {
    key: { agent_id: agent, model_id: options.model },
    request_id: randomUUID(), // a retry with the same id gets the turn that was committed, and computes nothing
    append: { messages: { messages: [{ role: "user", content: text }] } },
    max_tokens: Number(options["max-tokens"]),
    sampling: { temperature: Number(options.temperature), ignore_eos: options["ignore-eos"] },
  };
  await retrying(async () => {
    // Where the attempt before broke off, the answer begins again.
    running = client.inference.Generate(request, client.metadata(request.request_id));
    let cached, finished;
    for await (const event of running) {
      if (event.started) cached = event.started.cache.cached;
      if (event.delta) process.stdout.write(event.delta.text);
      if (event.finished) finished = event.finished;
    }
    // A stream that ends without an error has had its `finished`.
    const reused = cached.map(({ tier, tokens }) => `${tokens} tokens ${tier}`).join(", ") || "nothing";
    const { usage, version } = finished;
    process.stderr.write(`\n[reused: ${reused}; ${usage.completion_tokens} generated; version ${version.version}]\n`);
  });
}

async function list(client, options) {
  for (let page_token = ""; ; ) {
    const page = await retrying(() => client.ask(client.agents, "ListAgents", { page_token }, randomUUID()));
    for (const { key, tokens, turns, tier } of page.agents) {
      process.stdout.write(`${key.agent_id}\t${key.model_id}\t${tokens} tokens\t${turns} turns\t${tier}\n`);
    }
    page_token = page.next_page_token;
    if (!page_token) return;
  }
}

async function fork(client, options, agent, name) {
  const request = { key: { agent_id: agent, model_id: options.model }, new_agent_id: name };
  const { agent: made } = await retrying(() => client.ask(client.agents, "ForkAgent", request, randomUUID()));
  process.stdout.write(`${made.key.agent_id}: ${made.tokens} tokens, version ${made.version.version}\n`);
}

async function exportAgent(client, options, agent, path) {
  const key = { agent_id: agent, model_id: options.model };
  const part = `${path}.${randomUUID()}.part`; // FILE is there when it is whole
  try {
    const bytes = await retrying(async () => {
      const file = await open(part, "w", 0o600); // it holds all that the agent was told
      try {
        let size = 0;
        running = client.agents.ExportAgent({ key }, client.metadata(randomUUID()));
        for await (const { chunk } of running) {
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

async function importAgent(client, options, path, agent = "") {
  const made = await retrying(async () => {
    const file = await open(path);
    try {
      return await new Promise((resolve, reject) => {
        running = client.agents.ImportAgent(client.metadata(randomUUID()), (error, response) =>
          error ? reject(error) : resolve(response.agent),
        );
        send(file, running, { key: { agent_id: agent } }).catch(reject);
      });
    } finally {
      running.cancel(); // where the file could not be read to its end
      await file.close();
    }
  });
  const { key, tokens, warm_tokens } = made;
  process.stdout.write(`${key.agent_id} on ${key.model_id}: ${tokens} tokens, ${warm_tokens} with KV\n`);
}

/** Write `first` and then the file to a call, no faster than they are taken. */
async function send(file, call, first) {
  call.write(first);
  const stream = file.createReadStream({ highWaterMark: CHUNK_BYTES, autoClose: false });
  for await (const chunk of stream) {
    if (call.destroyed) return;
    await new Promise((taken) => call.write({ chunk }, taken));
  }
  call.end();
}

const COMMANDS = {
  generate: [generate, 2, 2],
  list: [list, 0, 0],
  fork: [fork, 2, 2],
  export: [exportAgent, 2, 2],
  import: [importAgent, 1, 2],
};

async function main() {
  let parsed;
  try {
    parsed = parseArgs({ options: OPTIONS, allowPositionals: true });
  } catch (error) {
    process.stderr.write(`${error.message}\n${USAGE}`);
    return 2;
  }
  const [name, ...given] = parsed.positionals;
  const [command, fewest, most] = Object.hasOwn(COMMANDS, name ?? "") ? COMMANDS[name] : [];
  if (!command || given.length < fewest || given.length > most) {
    process.stderr.write(USAGE);
    return 2;
  }
  const { address, ca } = parsed.values;
  const client = new Client({ address, ca, apiKey: process.env.AGENTMEM_API_KEY });
  process.once("SIGINT", () => (running ? running.cancel() : process.exit(130)));
  try {
    await command(client, parsed.values, ...given);
    return 0;
  } catch (error) {
    process.stderr.write(`${describe(error)}\n`);
    return wasCancelled(error) ? 130 : 1;
  } finally {
    client.close();
  }
}

process.exitCode = await main();

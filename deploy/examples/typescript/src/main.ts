#!/usr/bin/env node
// A small command line over Agentmem's gRPC door.
import { randomUUID } from "node:crypto";
import { parseArgs } from "node:util";
import { Code } from "@connectrpc/connect";
import { Agentmem, optionsFrom } from "./client.js";
import { type Context, exportAgent, fork, generate, importAgent, list } from "./commands.js";
import { AgentmemError } from "./errors.js";

const USAGE = `usage: node dist/main.js COMMAND
  generate AGENT TEXT [--request-id ID] [--max-tokens N] [--ignore-eos]   one turn; Ctrl-C cancels
  list                  the agents, and where their KV is
  fork AGENT NEW        a second agent with the same memory
  export AGENT FILE     the agent as one file
  import FILE [AGENT]   an agent from such a file
environment: AGENTMEM_ADDRESS, AGENTMEM_MODEL, AGENTMEM_API_KEY, AGENTMEM_TLS,
             AGENTMEM_CA, AGENTMEM_CLIENT_CERT, AGENTMEM_CLIENT_KEY
`;

function parsed() {
  const { positionals, values } = parseArgs({
    allowPositionals: true,
    options: {
      "request-id": { type: "string", default: randomUUID() },
      "max-tokens": { type: "string", default: "200" },
      "ignore-eos": { type: "boolean", default: false },
    },
  });
  const { "request-id": requestId, "max-tokens": maxTokens, "ignore-eos": ignoreEos } = values;
  return { positionals, turn: { requestId, maxTokens: Number(maxTokens), ignoreEos } };
}

/** What the command line asks for; undefined where it asks for nothing that there is. */
function command(): ((context: Context) => Promise<void>) | undefined {
  let given: ReturnType<typeof parsed>;
  try {
    given = parsed();
  } catch {
    return undefined;
  }
  const [name, first, second, ...more] = given.positionals;
  if (more.length > 0) return undefined;
  if (name === "list" && first === undefined) return list;
  if (name === "import" && first !== undefined) return (context) => importAgent(context, first, second);
  if (first === undefined || second === undefined) return undefined;
  if (name === "generate") return (context) => generate(context, first, second, given.turn);
  if (name === "fork") return (context) => fork(context, first, second);
  if (name === "export") return (context) => exportAgent(context, first, second);
  return undefined;
}

async function main(): Promise<number> {
  const run = command();
  if (!run) {
    process.stderr.write(USAGE);
    return 2;
  }
  const interrupt = new AbortController();
  process.once("SIGINT", () => interrupt.abort()); // a second Ctrl-C ends the program at once
  try {
    const client = new Agentmem(optionsFrom(process.env));
    await run({ client, model: process.env["AGENTMEM_MODEL"] || "demo", signal: interrupt.signal });
    return 0;
  } catch (error) {
    const cancelled =
      error instanceof AgentmemError
        ? error.code === Code.Canceled && error.retryAfter === undefined
        : interrupt.signal.aborted;
    const told = error instanceof Error && !(error instanceof AgentmemError) ? error.message : `${error}`;
    process.stderr.write(`${told}\n`);
    return cancelled ? 130 : 1;
  }
}

process.exitCode = await main();

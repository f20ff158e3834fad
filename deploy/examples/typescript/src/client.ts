// A connection to Agentmem: credentials, and calls that are made again where that helps.
import { readFileSync } from "node:fs";
import { setTimeout as sleep } from "node:timers/promises";
import { type Client, Code, type Interceptor, createClient } from "@connectrpc/connect";
import { createGrpcTransport } from "@connectrpc/connect-node";
import { AgentmemError } from "./errors.js";
import { AgentService } from "./stubs/agentmem/v1/agent_pb.js";
import { InferenceService } from "./stubs/agentmem/v1/inference_pb.js";

/** For how long a call is made again. */
const PATIENCE_SECONDS = 30;

/** PEM. Without `ca` the certificate authorities are those of Node.js; `cert` and `key` go together. */
export interface Tls {
  ca?: Buffer;
  cert?: Buffer;
  key?: Buffer;
}

export interface Options {
  /** HOST:PORT. */
  address: string;
  /** Sent as a bearer token; without TLS it travels in clear text. */
  apiKey?: string | undefined;
  tls?: Tls | undefined;
}

/** The variables that Agentmem's command line reads, too. */
export function optionsFrom(environment: NodeJS.ProcessEnv): Options {
  const tls: Tls = {};
  const files = { ca: "AGENTMEM_CA", cert: "AGENTMEM_CLIENT_CERT", key: "AGENTMEM_CLIENT_KEY" } as const;
  for (const [name, variable] of Object.entries(files)) {
    const file = environment[variable];
    if (file) tls[name as keyof Tls] = readFileSync(file);
  }
  return {
    address: environment["AGENTMEM_ADDRESS"] || "127.0.0.1:50051",
    apiKey: environment["AGENTMEM_API_KEY"],
    tls: environment["AGENTMEM_TLS"] || Object.keys(tls).length > 0 ? tls : undefined,
  };
}

/** The services that this program calls, by one connection. */
export class Agentmem {
  readonly inference: Client<typeof InferenceService>;
  readonly agents: Client<typeof AgentService>;

  constructor({ address, apiKey, tls }: Options) {
    const withKey: Interceptor = (next) => (request) => {
      if (apiKey) request.header.set("authorization", `Bearer ${apiKey}`);
      return next(request);
    };
    const transport = createGrpcTransport({
      baseUrl: `${tls ? "https" : "http"}://${address}`,
      nodeOptions: { ...tls },
      interceptors: [withKey],
      pingIntervalMs: 20_000, // a gateway that has vanished is noticed
    });
    this.inference = createClient(InferenceService, transport);
    this.agents = createClient(AgentService, transport);
  }
}

/**
 * What `attempt` gives, tried again after as long as the gateway says, or after a second where the connection fails.
 * Throws AgentmemError. `signal` ends the waiting.
 */
export async function retrying<T>(signal: AbortSignal, attempt: () => Promise<T>): Promise<T> {
  const ends = Date.now() + 1000 * PATIENCE_SECONDS;
  for (;;) {
    try {
      return await attempt();
    } catch (reason) {
      if (signal.aborted) throw new AgentmemError(Code.Canceled, "interrupted");
      const error = AgentmemError.from(reason);
      const milliseconds = 1000 * Math.max(error.retryAfter ?? Infinity, 0.1);
      if (Date.now() + milliseconds > ends) throw error;
      process.stderr.write(`${error}; trying again\n`);
      await sleep(milliseconds, undefined, { signal });
    }
  }
}

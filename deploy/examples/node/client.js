// A connection to Agentmem: stubs from the .proto files as they are, credentials, and calls that are tried again.
import { existsSync, readFileSync } from "node:fs";
import { setTimeout as sleep } from "node:timers/promises";
import { fileURLToPath } from "node:url";
import grpc from "@grpc/grpc-js";
import protoLoader from "@grpc/proto-loader";

const HERE = fileURLToPath(new URL(".", import.meta.url));
const PROTOS = process.env.AGENTMEM_PROTOS ?? fileURLToPath(new URL("../../../protos", import.meta.url));
const PATIENCE_SECONDS = 30;

if (!existsSync(PROTOS)) {
  throw new Error(`there are no protos at ${PROTOS}; let AGENTMEM_PROTOS name the folder that holds agentmem/v1`);
}
// 64-bit numbers as text, because a double holds 53 bits; names of fields as in the protos.
const definition = protoLoader.loadSync(
  ["agentmem/v1/inference.proto", "agentmem/v1/agent.proto", `${HERE}errors.proto`],
  { includeDirs: [PROTOS], keepCase: true, longs: String, enums: String, defaults: true, oneofs: true },
);
const { agentmem } = grpc.loadPackageDefinition(definition);

export class Client {
  /** `ca` is a file of certificates in PEM, for TLS; without it the connection is not encrypted. */
  constructor({ address, apiKey, ca }) {
    const credentials = ca ? grpc.credentials.createSsl(readFileSync(ca)) : grpc.credentials.createInsecure();
    this.inference = new agentmem.v1.InferenceService(address, credentials);
    this.agents = new agentmem.v1.AgentService(address, credentials);
    this.apiKey = apiKey;
  }

  /** What goes with each call. `requestId` finds the call again in the server's logs. */
  metadata(requestId) {
    const metadata = new grpc.Metadata();
    metadata.set("x-request-id", requestId);
    if (this.apiKey) metadata.set("authorization", `Bearer ${this.apiKey}`);
    return metadata;
  }

  /** The response of a call with one; `stub` is `inference` or `agents`. */
  ask(stub, method, request, requestId) {
    const deadline = Date.now() + 60_000;
    return new Promise((resolve, reject) => {
      stub[method](request, this.metadata(requestId), { deadline }, (error, response) =>
        error ? reject(error) : resolve(response),
      );
    });
  }

  close() {
    this.inference.close();
    this.agents.close();
  }
}

/** The result of `attempt`, tried again after as long as the server says, or after a second where none answers. */
export async function retrying(attempt) {
  for (let ends; ; ) {
    try {
      return await attempt();
    } catch (error) {
      const delay = retryDelay(error) ?? (error.code === grpc.status.UNAVAILABLE ? 1 : undefined);
      ends ??= Date.now() + 1000 * PATIENCE_SECONDS;
      if (delay === undefined || Date.now() + 1000 * delay > ends) throw error;
      process.stderr.write(`${describe(error)}; trying again\n`);
      await sleep(1000 * Math.max(delay, 0.1));
    }
  }
}

/** A failed call in one line: status, message, and when to try again. */
export function describe(error) {
  if (error.code === undefined || error.details === undefined) return `${error.message ?? error}`;
  const delay = retryDelay(error);
  const again = delay === undefined ? "" : ` (try again in ${delay} s)`;
  return `${grpc.status[error.code]}: ${error.details}${again}`;
}

export const wasCancelled = (error) => error.code === grpc.status.CANCELLED;

/** Seconds of the RetryInfo in the trailer; undefined where there is none. */
function retryDelay(error) {
  const [trailer] = error.metadata?.get("grpc-status-details-bin") ?? [];
  if (!trailer) return undefined;
  for (const { type_url, value } of definition["google.rpc.Status"].deserialize(trailer).details) {
    if (!type_url.endsWith("/google.rpc.RetryInfo")) continue;
    const { retry_delay } = definition["google.rpc.RetryInfo"].deserialize(value);
    return Number(retry_delay?.seconds ?? 0) + (retry_delay?.nanos ?? 0) / 1e9;
  }
  return undefined;
}

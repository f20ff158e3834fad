// What a failed call says, typed: the status, and the details that the gateway sends with it.
import { Code, ConnectError } from "@connectrpc/connect";
import { Code as Spelled } from "./stubs/google/rpc/code_pb.js";
import { BadRequestSchema, ResourceInfoSchema, RetryInfoSchema } from "./stubs/google/rpc/error_details_pb.js";

/** A field of the request that is wrong, by its path, and what is wrong with it. */
export interface Violation {
  readonly field: string;
  readonly problem: string;
}

/** A call that failed. */
export class AgentmemError extends Error {
  override readonly name = "AgentmemError";

  constructor(
    readonly code: Code,
    message: string,
    /** With INVALID_ARGUMENT: what is wrong. */
    readonly violations: readonly Violation[] = [],
    /** With NOT_FOUND: a kind, such as "agent", and a name. */
    readonly missing: { readonly kind: string; readonly name: string } | undefined = undefined,
    /** Seconds after which the call may be made again; undefined where that would not help. */
    readonly retryAfter: number | undefined = undefined,
    options?: ErrorOptions,
  ) {
    super(message, options);
  }

  /** The status as gRPC spells it, such as NOT_FOUND. */
  get status(): string {
    return Spelled[this.code] ?? `${this.code}`;
  }

  /** In one line. */
  override toString(): string {
    const told = this.violations.map(({ field }) => `field ${field}`);
    if (this.missing) told.push(`${this.missing.kind} "${this.missing.name}"`);
    if (this.retryAfter !== undefined) told.push(`try again in ${this.retryAfter} s`);
    return `${this.status}: ${this.message}${told.map((each) => ` (${each})`).join("")}`;
  }

  /** What a call was rejected with, as one of these; anything else is thrown as it is. */
  static from(reason: unknown): AgentmemError {
    if (reason instanceof AgentmemError) return reason;
    if (!(reason instanceof ConnectError)) throw reason;
    const [bad] = reason.findDetails(BadRequestSchema);
    const [resource] = reason.findDetails(ResourceInfoSchema);
    const [retry] = reason.findDetails(RetryInfoSchema);
    const delay = retry?.retryDelay && Number(retry.retryDelay.seconds) + retry.retryDelay.nanos / 1e9;
    return new AgentmemError(
      reason.code,
      reason.rawMessage,
      bad?.fieldViolations.map(({ field, description }) => ({ field, problem: description })),
      resource && { kind: resource.resourceType, name: resource.resourceName },
      delay ?? (isBroken(reason) ? 1 : undefined),
      { cause: reason },
    );
  }
}

/**
 * Whether the connection failed, and it is not the gateway that says so: what that says has details. Aborted is what
 * Connect makes of a socket that was reset.
 */
function isBroken(error: ConnectError): boolean {
  const codes = [Code.Unavailable, Code.Internal, Code.Unknown, Code.Aborted, Code.Canceled];
  return codes.includes(error.code) && !error.metadata.has("grpc-status-details-bin");
}

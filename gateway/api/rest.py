"""The agents' half of the contract over REST: one table of endpoints, of which routes, parsing and OpenAPI are made.

Generate is an exchange like those of other dialects; its events are the contract's own.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Annotated, Any, Final, Literal, NamedTuple

from google.protobuf.descriptor import MethodDescriptor
from pydantic import AfterValidator, BaseModel, Field, WithJsonSchema, create_model

from agentmem.errors import AgentmemError, InvalidArgument
from agentmem.v1 import agent_pb2, inference_pb2
from gateway.api.errors import REST
from gateway.api.exchange import Answer, Exchange, SseEvent
from gateway.api.transcoding import ContractModel, contract_model, message_model, to_json
from gateway.api.validation import Json, KeyPart, Strict

Values = Mapping[str, str | int | bool]
"""The parameters of a request that were given, by name."""

_PATH_FIELDS: Final = {"agent": "key.agent_id", "name": "name"}
_TURNS: Final = frozenset({"Generate", "Prefill"})


def _int32(text: str) -> int:
    if int(text) not in _INT32:
        raise ValueError("must be a whole number of 32 bits")
    return int(text)


_INT32: Final = range(-(2**31), 2**31)
_Flag = Annotated[
    Literal["true", "false"], AfterValidator(lambda text: text == "true"), WithJsonSchema({"type": "boolean"})
]
_Number = Annotated[
    str,
    Field(pattern="^-?[0-9]{1,10}$"),
    AfterValidator(_int32),
    WithJsonSchema({"type": "integer", "minimum": -(2**31), "maximum": 2**31 - 1}),
]
_Token = Annotated[str, Field(max_length=4096), WithJsonSchema({"type": "string"})]


class Parameter(NamedTuple):
    """One query parameter of a `kind`; `field` is the path of the request's field that it fills, empty for none."""

    name: str
    field: str
    what: str
    kind: Any = KeyPart
    required: bool = False


@dataclass(frozen=True)
class Endpoint:
    """One endpoint. What of the RPC's request comes neither from path nor query is the body.

    `example` is a body, and `needed` a field of it that must be given although the contract has a default for it.
    """

    method: str
    path: str
    rpc: MethodDescriptor
    summary: str
    query: tuple[Parameter, ...]
    needed: str
    example: Json | None = field(hash=False)

    @cached_property
    def fields(self) -> dict[str, str]:
        """The fields of the request that parameters fill, parts of the path and then the query's, by their names."""
        in_path = {name: _PATH_FIELDS[name] for name in re.findall(r"{(\w+)}", self.path)}
        return in_path | {parameter.name: parameter.field for parameter in self.query if parameter.field}

    @property
    def is_turn(self) -> bool:
        """Whether Idempotency-Key names what it does."""
        return self.rpc.name in _TURNS

    @property
    def has_body(self) -> bool:
        """Whether it takes JSON."""
        return self.method in ("POST", "PUT") and not self.rpc.client_streaming

    def check(self, given: Values) -> None:
        """Raise InvalidArgument for parameters that contradict each other."""
        if self.rpc.name == "DeleteAgent" and ("model" in given) == bool(given.get("all_models")):
            raise InvalidArgument("model", "name one model, or say all_models=true to delete the agent on all of them")

    def renamed(self, error: InvalidArgument) -> InvalidArgument:
        """Return `error` about the RPC's request as one about the parameter or header that was given."""
        names = {path: name for name, path in self.fields.items()}
        if self.is_turn:
            names["request_id"] = "Idempotency-Key"
        return InvalidArgument(names.get(error.field, error.field), error.problem)


_MODEL: Final = Parameter("model", "key.model_id", "The agent's model.", required=True)
_PAGE: Final = (
    Parameter("page_size", "page_size", "At most 1000; 100 where it is not given.", _Number),
    Parameter("page_token", "page_token", "next_page_token of the page before.", _Token),
)
_TEXT: Final = Parameter("include_text", "include_text", "true: also what was said.", _Flag)
_QUESTION: Final = {"append": {"messages": {"messages": [{"role": "user", "content": "Where is the key?"}]}}}
_CONTEXT: Final = {"append": {"text": "The key is in the cellar."}}
_HINT: Final = {"key": {"agent_id": "marco", "model_id": "demo"}, "steps": 1}
_SERVICES: Final = (
    agent_pb2.DESCRIPTOR.services_by_name["AgentService"],
    inference_pb2.DESCRIPTOR.services_by_name["InferenceService"],
)


def _endpoint(
    route: str, rpc: str, summary: str, *query: Parameter, needed: Json | None = None, example: Json | None = None
) -> Endpoint:
    """Return an endpoint; `needed` is an example whose one field must be given."""
    method, path = route.split()
    [found] = [service.methods_by_name[rpc] for service in _SERVICES if rpc in service.methods_by_name]
    return Endpoint(method, path, found, summary, query, next(iter(needed or ()), ""), needed or example)


def _of_agent(route: str, rpc: str, summary: str, *query: Parameter, **body: Json) -> Endpoint:
    """Return an endpoint of one agent of one model; the path of `route` is relative to the agent's."""
    method, _, path = route.partition(" ")
    return _endpoint(f"{method} /v1/agents/{{agent}}{path}", rpc, summary, _MODEL, *query, **body)


ENDPOINTS: Final = (
    _endpoint(
        "GET /v1/agents",
        "ListAgents",
        "List agents, in the order of their ids",
        Parameter("model", "model_id", "Only agents of this model."),
        Parameter("agent", "agent_id", "Only this agent's memories, one per model."),
        *_PAGE,
    ),
    _of_agent("GET", "GetAgent", "Describe an agent"),
    _endpoint(
        "DELETE /v1/agents/{agent}",
        "DeleteAgent",
        "Erase an agent for good",
        Parameter("model", "key.model_id", "The agent's model; this or all_models is required."),
        Parameter("all_models", "", "true: the agent's memories on all models.", _Flag),
        Parameter("allow_missing", "allow_missing", "true: 200 where there is nothing to delete.", _Flag),
    ),
    _of_agent("POST /generate", "Generate", "Run a turn", example={**_QUESTION, "max_tokens": 50}),
    _of_agent("POST /prefill", "Prefill", "Let an agent take context in", example=_CONTEXT),
    _of_agent("POST /fork", "ForkAgent", "Make a second agent with the same memory", needed={"new_agent_id": "polo"}),
    _of_agent("POST /trim", "TrimAgent", "Drop the ledger's tokens from a position on", needed={"keep_tokens": 4}),
    _of_agent("POST /probe", "ProbeAgent", "What a prompt would reuse, without any effect", example=_QUESTION),
    _of_agent("POST /prefetch", "PrefetchAgent", "Bring an agent's KV into the pool", example={"tier": "hot"}),
    _of_agent("POST /evict", "EvictAgent", "Drop an agent's KV from a tier", example={"tier": "hot"}),
    _of_agent("PUT /pin", "PinAgent", "Keep an agent's KV on disk, or let it go", needed={"pinned": True}),
    _of_agent(
        "PUT /ttl",
        "SetAgentTtl",
        "Set both idle times; an absent one is cleared",
        example={"ttl": 86400, "delete_after": 2592000},
    ),
    _of_agent(
        "PUT /context-policy",
        "SetContextPolicy",
        "What happens when the memory outgrows the context",
        needed={"context_policy": "summarize"},
    ),
    _of_agent("GET /turns", "ListTurns", "Read a memory, oldest turn first", _TEXT, *_PAGE),
    _of_agent("GET /snapshots", "ListSnapshots", "List snapshots, newest first", *_PAGE),
    _of_agent("POST /snapshots", "CreateSnapshot", "Name the agent's present state", needed={"name": "before"}),
    _of_agent("POST /snapshots/{name}/restore", "RestoreSnapshot", "Go back to a snapshot", example={}),
    _of_agent("DELETE /snapshots/{name}", "DeleteSnapshot", "Forget a snapshot"),
    _of_agent("GET /export", "ExportAgent", "The agent as one safetensors file"),
    _of_agent("POST /import", "ImportAgent", "Make an agent of such a file"),
    _endpoint("PUT /v1/turn-hints", "SetTurnHints", "In how many steps agents speak next", needed={"hints": [_HINT]}),
    _endpoint(
        "POST /v1/generations/abort",
        "Abort",
        "End the turn with this Idempotency-Key",
        needed={"request_id": "0d6e1c7e"},
    ),
)
"""A new RPC over REST is one entry here; its example is tried by a test."""

STREAM = "stream"


@cache
def model_of_query(endpoint: Endpoint) -> type[Strict]:
    """Return what the query of an endpoint may hold, as text."""
    fields: dict[str, Any] = {
        one.name: (one.kind, Field(... if one.required else None, description=one.what)) for one in endpoint.query
    }
    made: type[Strict] = create_model("Query", __base__=Strict, **fields)
    return made


@cache
def model_of_body(endpoint: Endpoint) -> type[ContractModel]:
    """Return the body of an endpoint. That of Generate has `stream` besides the contract's fields."""
    further: dict[str, Any] = {}
    if endpoint.rpc.name == "Generate":
        further[STREAM] = (bool, Field(False, description="Answer with server-sent events."))
    bound = {path.partition(".")[0] for path in endpoint.fields.values()}
    without = {*bound, "request_id"} if endpoint.is_turn else bound
    return contract_model(endpoint.rpc.input_type, without, endpoint.needed, **further)


@cache
def model_of_answer() -> type[BaseModel]:
    """Return the model of Generate's whole answer: what all its events say."""
    delta = message_model(inference_pb2.Delta.DESCRIPTOR)
    said: dict[str, Any] = {name: (one.annotation, ...) for name, one in delta.model_fields.items()}
    for event in (inference_pb2.Started, inference_pb2.Finished):
        said[event.DESCRIPTOR.name.lower()] = (message_model(event.DESCRIPTOR), ...)
    return create_model("Turn", __base__=ContractModel, **said)


def exchange_of(turn: inference_pb2.GenerateRequest, streamed: bool) -> Exchange:
    """Return the exchange of one turn that is complete but for its memory."""
    return Exchange((turn,), RestAnswer(), streamed, label=turn.label)


class RestAnswer(Answer):
    """The contract's events as they are, or all of them as one object."""

    def __init__(self) -> None:
        super().__init__()
        self._said = inference_pb2.Delta()

    def add(self, choice: int, event: inference_pb2.GenerateResponse) -> None:
        self.heard[choice].add(event)
        self._said.MergeFrom(event.delta)  # repeated fields grow; text is replaced, and joined in the end

    def events(self, choice: int, event: inference_pb2.GenerateResponse) -> Iterator[SseEvent]:  # noqa: ARG002 - one
        name = event.WhichOneof("event")
        if name is not None:
            yield SseEvent(to_json(getattr(event, name)), name)

    def failed(self, error: AgentmemError) -> Iterator[SseEvent]:
        yield SseEvent(REST.body(error), "error")

    def body(self) -> Json:
        heard = self.heard[0]
        self._said.reasoning, self._said.text = "".join(heard.reasoning), "".join(heard.texts)
        return {**to_json(self._said), "started": to_json(heard.started), "finished": to_json(heard.finished)}

"""The table of REST's endpoints, of which routes, parsing and OpenAPI are made."""

from collections.abc import Iterator
from functools import cache
from typing import Any, Final

from google.protobuf.message import Message
from pydantic import BaseModel, Field, create_model

from agentmem.errors import AgentmemError
from agentmem.v1 import agent_pb2, inference_pb2, model_pb2, workflow_pb2
from gateway.api.contract_json import to_json
from gateway.api.endpoints import Endpoint, Flag, Kind, Number, Parameter, Sequence, Token
from gateway.api.errors import REST
from gateway.api.exchange import Answer, Exchange, SseEvent
from gateway.api.transcoding import ContractModel, contract_model, message_model
from gateway.api.validation import Json, Strict
from gateway.rings import is_installed

_MODEL: Final = Parameter("model", "key.model_id", "The agent's model.", required=True)
_PAGE: Final = (
    Parameter("page_size", "page_size", "At most 1000; 100 where it is not given.", Number),
    Parameter("page_token", "page_token", "next_page_token of the page before.", Token),
)
_TEXT: Final = Parameter("include_text", "include_text", "true: also what was said.", Flag)
_QUESTION: Final = {"append": {"messages": {"messages": [{"role": "user", "content": "Where is the key?"}]}}}
_CONTEXT: Final = {"append": {"text": "The key is in the cellar."}}
_HINT: Final = {"key": {"agent_id": "marco", "model_id": "demo"}, "steps": 1}
_WORKFLOW: Final = """\
workflow: greeting
agents: {host: {system: You are the host.}, guest: {}}
phases: [{name: hello, agents: [host, guest], prompts: Greet the other., max_tokens: 8}]
"""
_OF_NEW_RUNS: Final = frozenset({"request_id", "variables"})
_SERVICES: Final = (
    agent_pb2.DESCRIPTOR.services_by_name["AgentService"],
    inference_pb2.DESCRIPTOR.services_by_name["InferenceService"],
    model_pb2.DESCRIPTOR.services_by_name["ModelService"],
    workflow_pb2.DESCRIPTOR.services_by_name["WorkflowService"],
)


def _endpoint(
    route: str,
    rpc: str,
    summary: str,
    *query: Parameter,
    needed: Json | None = None,
    example: Json | None = None,
    **further: Any,
) -> Endpoint:
    """`needed` is an example whose one field must be given."""
    method, path = route.split()
    [found] = [service.methods_by_name[rpc] for service in _SERVICES if rpc in service.methods_by_name]
    needs = next(iter(needed or ()), "")
    return Endpoint(method, path, found, summary, query, needs, needed if example is None else example, **further)


def _of_agent(route: str, rpc: str, summary: str, *query: Parameter, **body: Json) -> Endpoint:
    method, _, path = route.partition(" ")
    return _endpoint(f"{method} /v1/agents/{{agent}}{path}", rpc, summary, _MODEL, *query, **body)


_TABLE: Final = (
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
        "Delete an agent for good",
        Parameter("model", "key.model_id", "The agent's model; this or all_models is required."),
        Parameter("all_models", "", "true: the agent's memories on all models.", Flag),
        Parameter("allow_missing", "allow_missing", "true: 200 where there is nothing to delete.", Flag),
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
    _of_agent("GET /blocks", "ListBlocks", "Where an agent's KV is, block by block"),
    _of_agent("GET /snapshots", "ListSnapshots", "List snapshots, newest first", *_PAGE),
    _of_agent("POST /snapshots", "CreateSnapshot", "Name the agent's present state", needed={"name": "before"}),
    _of_agent("POST /snapshots/{name}/restore", "RestoreSnapshot", "Go back to a snapshot", example={}),
    _of_agent("DELETE /snapshots/{name}", "DeleteSnapshot", "Forget a snapshot"),
    _of_agent("GET /export", "ExportAgent", "The agent as one file"),
    _of_agent("POST /import", "ImportAgent", "Make an agent of such a file"),
    _endpoint("PUT /v1/turn-hints", "SetTurnHints", "In how many steps agents speak next", needed={"hints": [_HINT]}),
    _endpoint(
        "POST /v1/generations/abort",
        "Abort",
        "End the turn with this Idempotency-Key",
        needed={"request_id": "0d6e1c7e"},
    ),
    _endpoint("GET /v1/model-registry", "ListModels", "List the registered models, the default first", *_PAGE),
    _endpoint("GET /v1/model-registry/{model}", "GetModel", "Describe a registered model, loaded or not"),
    _endpoint(
        "POST /v1/model-registry/{model}/load",
        "LoadModel",
        "Load a model and tell its progress, for admins",
        example={},
    ),
    _endpoint("POST /v1/model-registry/{model}/unload", "UnloadModel", "Unload a model, for admins", example={}),
    _endpoint(
        "POST /v1/model-registry/{model}/pull",
        "PullModel",
        "Download a model from the hub, register it and tell its progress, for admins",
        example={},
    ),
    _endpoint(
        "GET /v1/hub/models",
        "SearchModels",
        "Look for models on the hub, and whether they fit, for admins",
        Parameter("query", "query", "Words that the hub id must have."),
        Parameter("limit", "limit", "At most 50; 10 where it is not given.", Number),
    ),
    _endpoint("GET /v1/workflows", "ListWorkflows", "List runs of workflows, newest first, without agents", *_PAGE),
    _endpoint(
        "POST /v1/workflows",
        "RunWorkflow",
        "Run a workflow, or join the run of the same Idempotency-Key, and tell its events",
        example={"definition_yaml": _WORKFLOW},
        absent=frozenset({"resume_workflow_id", "watch_workflow_id"}),
    ),
    _endpoint(
        "POST /v1/workflows/check",
        "CheckWorkflow",
        "What is wrong with a workflow's file, and where",
        needed={"definition_yaml": _WORKFLOW},
    ),
    _endpoint("GET /v1/workflows/{workflow}", "GetWorkflow", "Describe a run"),
    _endpoint("DELETE /v1/workflows/{workflow}", "DeleteWorkflow", "Delete the record of a run that does not go on"),
    _endpoint(
        "GET /v1/workflows/{workflow}/events",
        "RunWorkflow",
        "A run's events, and those to come while it goes on; it is not resumed",
        Parameter("after_sequence", "after_sequence", "Events up to this sequence number are left out.", Sequence),
        parts={"workflow": "watch_workflow_id"},
        absent=_OF_NEW_RUNS,
    ),
    _endpoint(
        "POST /v1/workflows/{workflow}/resume",
        "RunWorkflow",
        "Go on with a run that was interrupted or failed, or join it, and tell its events",
        example={},
        parts={"workflow": "resume_workflow_id"},
        absent=_OF_NEW_RUNS,
    ),
    _endpoint("POST /v1/workflows/{workflow}/cancel", "CancelWorkflow", "End a run", example={}),
)
"""A new RPC over REST is one entry here; a test tries its example."""
ENDPOINTS: Final = tuple(
    endpoint
    for endpoint in _TABLE
    if endpoint.rpc.containing_service.name != "WorkflowService" or is_installed("gateway.workflows")
)

STREAM = "stream"


@cache
def model_of_query(endpoint: Endpoint) -> type[Strict]:
    fields: dict[str, Any] = {
        one.name: (one.kind, Field(... if one.required else None, description=one.what)) for one in endpoint.query
    }
    made: type[Strict] = create_model("Query", __base__=Strict, **fields)
    return made


@cache
def model_of_body(endpoint: Endpoint) -> type[ContractModel]:
    """Generate's body has `stream` besides."""
    further: dict[str, Any] = {}
    if endpoint.kind is Kind.TURN:
        further[STREAM] = (bool, Field(False, description="Answer with server-sent events."))
    request = endpoint.rpc.input_type
    # A request whose parts of the path are unusual leaves another body, which needs another name.
    name = f"{endpoint.path.rpartition('/')[2].title()}{request.name}" if endpoint.parts else ""
    return contract_model(request, endpoint.outside, endpoint.needed, name, **further)


@cache
def model_of_answer() -> type[BaseModel]:
    """All that Generate's events say."""
    delta = message_model(inference_pb2.Delta.DESCRIPTOR)
    said: dict[str, Any] = {name: (one.annotation, ...) for name, one in delta.model_fields.items()}
    for event in (inference_pb2.Started, inference_pb2.Finished):
        said[event.DESCRIPTOR.name.lower()] = (message_model(event.DESCRIPTOR), ...)
    return create_model("Turn", __base__=ContractModel, **said)


def event_of(message: Message) -> SseEvent:
    """The arm of the message's oneof names the event."""
    descriptor = message.DESCRIPTOR
    names = (message.WhichOneof(group.name) for group in descriptor.oneofs if not group.name.startswith("_"))
    return SseEvent(to_json(message), next(filter(None, names), ""))


def exchange_of(turn: inference_pb2.GenerateRequest, streamed: bool) -> Exchange:
    return Exchange((turn,), RestAnswer(), streamed, label=turn.label)


class RestAnswer(Answer):
    """The contract's events as they are, or all of them as one object."""

    def __init__(self) -> None:
        super().__init__({})
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

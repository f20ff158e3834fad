"""The REST endpoints: one table, from which routes, parsing and the OpenAPI document are made."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final, NamedTuple

from google.protobuf.descriptor import FieldDescriptor, MethodDescriptor

from agentmem.errors import InvalidArgument
from agentmem.v1 import agent_pb2, inference_pb2

Values = Mapping[str, str | int | bool]
"""The parameters of a request that were given, by name."""

_PATH_FIELDS: Final = {"agent": "key.agent_id", "name": "name"}
_TURNS: Final = frozenset({"Generate", "Prefill"})


class Parameter(NamedTuple):
    """One query parameter; `field` is the path of the request's field that it fills, empty for none."""

    name: str
    field: str
    what: str
    required: bool = False


@dataclass(frozen=True)
class Endpoint:
    """One endpoint. What of the RPC's request comes neither from path nor query is the body.

    `needed` names fields of the body that must be given although the contract has a default for them.
    """

    method: str
    path: str
    rpc: MethodDescriptor
    summary: str
    query: tuple[Parameter, ...] = ()
    needed: frozenset[str] = field(default=frozenset())

    @cached_property
    def path_parameters(self) -> dict[str, str]:
        """The fields that parts of the path fill, by the parts' names."""
        return {name: _PATH_FIELDS[name] for name in re.findall(r"{(\w+)}", self.path)}

    @property
    def is_turn(self) -> bool:
        """Whether Idempotency-Key names what it does."""
        return self.rpc.name in _TURNS

    @property
    def has_body(self) -> bool:
        """Whether it takes JSON."""
        return self.method in ("POST", "PUT") and not self.rpc.client_streaming

    @property
    def bound(self) -> frozenset[str]:
        """Top-level fields of the request that the body doesn't have."""
        fields = [*self.path_parameters.values(), *(parameter.field for parameter in self.query)]
        return frozenset({name.partition(".")[0] for name in fields} | ({"request_id"} if self.is_turn else set()))

    def check(self, given: Values) -> None:
        """Raises InvalidArgument for parameters that are missing, or that contradict each other."""
        for parameter in self.query:
            if parameter.required and parameter.name not in given:
                raise InvalidArgument(parameter.name, "is required: add it to the query")
        if self.rpc.name == "DeleteAgent" and ("model" in given) == bool(given.get("all_models")):
            raise InvalidArgument("model", "name one model, or say all_models=true to delete the agent on all of them")

    def renamed(self, error: InvalidArgument) -> InvalidArgument:
        """`error` about the RPC's request as one about the parameter or header that was given."""
        names = {path: name for name, path in self.path_parameters.items()}
        names |= {parameter.field: parameter.name for parameter in self.query if parameter.field}
        if self.is_turn:
            names["request_id"] = "Idempotency-Key"
        return InvalidArgument(names.get(error.field, error.field), error.problem)


def field_of(rpc: MethodDescriptor, path: str) -> FieldDescriptor:
    """The field of the RPC's request at `path`, such as "key.model_id"."""
    *outer, name = path.split(".")
    message: Any = rpc.input_type
    for part in outer:
        message = message.fields_by_name[part].message_type
    found: FieldDescriptor = message.fields_by_name[name]
    return found


def _table() -> Iterator[Endpoint]:
    agents = agent_pb2.DESCRIPTOR.services_by_name["AgentService"].methods_by_name
    inference = inference_pb2.DESCRIPTOR.services_by_name["InferenceService"].methods_by_name
    model = Parameter("model", "key.model_id", "The agent's model.", required=True)
    page = (
        Parameter("page_size", "page_size", "At most 1000; 100 where it is not given."),
        Parameter("page_token", "page_token", "next_page_token of the page before."),
    )
    one = "/v1/agents/{agent}"
    yield Endpoint(
        "GET",
        "/v1/agents",
        agents["ListAgents"],
        "List agents, in the order of their ids",
        (
            Parameter("model", "model_id", "Only agents of this model."),
            Parameter("agent", "agent_id", "Only this agent's memories, one per model."),
            *page,
        ),
    )
    yield Endpoint("GET", one, agents["GetAgent"], "Describe an agent", (model,))
    yield Endpoint(
        "DELETE",
        one,
        agents["DeleteAgent"],
        "Erase an agent for good",
        (
            Parameter("model", "key.model_id", "The agent's model; this or all_models is required."),
            Parameter("all_models", "", "true: the agent's memories on all models."),
            Parameter("allow_missing", "allow_missing", "true: 200 where there is nothing to delete."),
        ),
    )
    body = (model,)
    yield Endpoint("POST", f"{one}/generate", inference["Generate"], "Run a turn", body)
    yield Endpoint("POST", f"{one}/prefill", inference["Prefill"], "Let an agent take context in", body)
    yield Endpoint(
        "POST", f"{one}/fork", agents["ForkAgent"], "Make a second agent with the same memory", body,
        frozenset({"new_agent_id"}),
    )  # fmt: skip
    yield Endpoint(
        "POST", f"{one}/trim", agents["TrimAgent"], "Drop the ledger's tokens from a position on", body,
        frozenset({"keep_tokens"}),
    )  # fmt: skip
    yield Endpoint("POST", f"{one}/probe", agents["ProbeAgent"], "What a prompt would reuse, without any effect", body)
    yield Endpoint("POST", f"{one}/prefetch", agents["PrefetchAgent"], "Bring an agent's KV into the pool", body)
    yield Endpoint("POST", f"{one}/evict", agents["EvictAgent"], "Drop an agent's KV from a tier", body)
    yield Endpoint(
        "PUT", f"{one}/pin", agents["PinAgent"], "Keep an agent's KV on disk, or let it go", body,
        frozenset({"pinned"}),
    )  # fmt: skip
    yield Endpoint("PUT", f"{one}/ttl", agents["SetAgentTtl"], "Set both idle times; an absent one is cleared", body)
    yield Endpoint(
        "PUT", f"{one}/context-policy", agents["SetContextPolicy"], "What happens when the memory outgrows the context",
        body, frozenset({"context_policy"}),
    )  # fmt: skip
    text = Parameter("include_text", "include_text", "true: also what was said.")
    yield Endpoint("GET", f"{one}/turns", agents["ListTurns"], "Read a memory, oldest turn first", (model, text, *page))
    snapshots = f"{one}/snapshots"
    yield Endpoint("GET", snapshots, agents["ListSnapshots"], "List snapshots, newest first", (model, *page))
    yield Endpoint(
        "POST", snapshots, agents["CreateSnapshot"], "Name the agent's present state", body, frozenset({"name"})
    )
    restore = f"{snapshots}/{{name}}/restore"
    yield Endpoint("POST", restore, agents["RestoreSnapshot"], "Go back to a snapshot", body)
    yield Endpoint("DELETE", f"{snapshots}/{{name}}", agents["DeleteSnapshot"], "Forget a snapshot", (model,))
    yield Endpoint("GET", f"{one}/export", agents["ExportAgent"], "The agent as one safetensors file", (model,))
    yield Endpoint("POST", f"{one}/import", agents["ImportAgent"], "Make an agent of such a file", (model,))
    yield Endpoint(
        "PUT", "/v1/turn-hints", agents["SetTurnHints"], "In how many steps agents speak next",
        needed=frozenset({"hints"}),
    )  # fmt: skip
    yield Endpoint(
        "POST", "/v1/generations/abort", inference["Abort"], "End the turn with this Idempotency-Key",
        needed=frozenset({"request_id"}),
    )  # fmt: skip


ENDPOINTS: Final = tuple(_table())

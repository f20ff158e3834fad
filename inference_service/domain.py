"""Requests as frozen, checked values."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple, Self

import numpy as np

from agentmem.kv.ledger import TokenIds, Uint32
from agentmem.v1 import inference_pb2, types_pb2
from agentmem.validation import NEVER, AgentKey, IdleTimes


@dataclass(frozen=True)
class MessagesInput:
    """The whole chat, in JSON values. `history`: how the agent's own past is taken."""

    messages: tuple[Mapping[str, Any], ...]
    tools: tuple[Mapping[str, Any], ...] = ()
    template_arguments: Mapping[str, Any] = field(default_factory=dict)
    history: types_pb2.History.ValueType = types_pb2.HISTORY_MEMORY


@dataclass(frozen=True)
class TextInput:
    text: str


@dataclass(frozen=True)
class AppendInput:
    content: TextInput | MessagesInput


@dataclass(frozen=True, eq=False)
class TokensInput:
    """Token ids [tokens], of any sequence of integers."""

    token_ids: Uint32

    def __init__(self, token_ids: TokenIds) -> None:
        object.__setattr__(self, "token_ids", np.asarray(token_ids, np.uint32))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TokensInput) and np.array_equal(self.token_ids, other.token_ids)

    __hash__ = None  # type: ignore[assignment]


TurnInput = MessagesInput | TextInput | AppendInput | TokensInput


SAMPLING_OF_MODELS: Final = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
"""A model may have defaults for these."""


@dataclass(frozen=True)
class Sampling:
    """Choice of the next token, by default greedy."""

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    ignore_eos: bool = False

    @property
    def defaults(self) -> types_pb2.Sampling:
        return types_pb2.Sampling(**{name: getattr(self, name) for name in SAMPLING_OF_MODELS})

    def with_given(self, given: types_pb2.Sampling) -> Self:
        """Override by a checked request."""
        changed = {field.name: value for field, value in given.ListFields() if field.name != "logit_bias"}
        return replace(self, **changed, logit_bias=dict(given.logit_bias))


@dataclass(frozen=True)
class HeldTool:
    """A callable tool. `arguments` is a JSON Schema; `field` names it in errors. Of a `strict` tool all must be
    honoured.
    """

    name: str
    arguments: str
    field: str
    strict: bool = False


@dataclass(frozen=True)
class HeldAnswer:
    """Bounds of an answer; there is a tool at least.

    `required`: only calls, at least one. `single`: at most one. With `json_schema` it is either text that fits, or
    calls; otherwise any text may stand around calls.
    """

    tools: tuple[HeldTool, ...]
    required: bool = False
    single: bool = False
    json_schema: str | None = None


@dataclass(frozen=True)
class TurnRequest:
    """One turn. `digest` tells repetitions; `generates` is False for Prefill.

    `memory_mode` is for inputs that are no append. `expiry` and `context_policy` are for new agents. `held` bounds
    answers that may call tools. `template_time` (ISO 8601) is the agent's new one, or "".
    """

    key: AgentKey
    input: TurnInput
    digest: bytes
    request_id: str = ""
    if_version: int | None = None
    if_revision: bytes = b""
    sampling: types_pb2.Sampling = field(default_factory=types_pb2.Sampling)
    """As given; the model has the rest."""
    stop: tuple[str, ...] = ()
    max_tokens: int | None = None
    cache_policy: inference_pb2.CachePolicy.ValueType = inference_pb2.CACHE_POLICY_KEEP
    top_logprobs: int | None = None
    parse_special: bool = False
    generates: bool = True
    label: str = ""
    tool_calls: bool = False
    held: HeldAnswer | None = None
    expiry: IdleTimes = NEVER
    context_policy: types_pb2.ContextPolicy.ValueType = types_pb2.CONTEXT_POLICY_UNSPECIFIED
    json_schema: str | None = None
    memory_mode: inference_pb2.MemoryMode.ValueType = inference_pb2.MEMORY_MODE_REPLACE
    template_time: str = ""

    @property
    def tools(self) -> tuple[Mapping[str, Any], ...]:
        """Definitions of tools in the input."""
        content = self.input.content if isinstance(self.input, AppendInput) else self.input
        return content.tools if isinstance(content, MessagesInput) else ()

    @property
    def anonymous(self) -> bool:
        return not self.key.agent_id

    @property
    def commits(self) -> bool:
        return not self.anonymous and self.cache_policy != inference_pb2.CACHE_POLICY_READ_ONLY


class CallPart(NamedTuple):
    """More arguments of an incomplete call; the first part has its name."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True)
class TokenEvent:
    """One generated token, and what it ended.

    `logprob` is before filters; `at` is the sampling's monotonic time. `reasoning` came before `text`; `in_reasoning`:
    nothing of it is in the answer.
    """

    token_id: int
    logprob: float | None
    top: tuple[tuple[int, float], ...]
    text: str
    calls: tuple[inference_pb2.ToolCall, ...] = ()
    at: float = 0.0
    reasoning: str = ""
    in_reasoning: bool = False
    parts: tuple[CallPart, ...] = ()

"""What a request is once it is inside: frozen, checked, and free of protos."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple, Self

import numpy as np

from agentmem.kv.ledger import TokenIds, Uint32
from agentmem.v1 import inference_pb2, types_pb2
from agentmem.validation import NEVER, AgentKey, IdleTimes


@dataclass(frozen=True)
class MessagesInput:
    """The whole chat, for the model's template. `messages` and `tools` are plain JSON values.

    `history` says how what the agent has had of it is taken.
    """

    messages: tuple[Mapping[str, Any], ...]
    tools: tuple[Mapping[str, Any], ...] = ()
    template_arguments: Mapping[str, Any] = field(default_factory=dict)
    history: types_pb2.History.ValueType = types_pb2.HISTORY_MEMORY


@dataclass(frozen=True)
class TextInput:
    """The whole text."""

    text: str


@dataclass(frozen=True)
class AppendInput:
    """Only what is new."""

    content: TextInput | MessagesInput


@dataclass(frozen=True, eq=False)
class TokensInput:
    """The whole prompt as token ids [tokens]. Other sequences of integers are taken for arrays."""

    token_ids: Uint32

    def __init__(self, token_ids: TokenIds) -> None:
        object.__setattr__(self, "token_ids", np.asarray(token_ids, np.uint32))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TokensInput) and np.array_equal(self.token_ids, other.token_ids)

    __hash__ = None  # type: ignore[assignment]


TurnInput = MessagesInput | TextInput | AppendInput | TokensInput


SAMPLING_OF_MODELS: Final = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
"""Parameters that a model may have defaults for."""


@dataclass(frozen=True)
class Sampling:
    """How the next token is chosen, by the fields of the contract's Sampling; by default greedily."""

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
        """The parameters that a model has defaults for."""
        return types_pb2.Sampling(**{name: getattr(self, name) for name in SAMPLING_OF_MODELS})

    def with_given(self, given: types_pb2.Sampling) -> Self:
        """Return the same, but for what is set in a request's, which was checked."""
        changed = {field.name: value for field, value in given.ListFields() if field.name != "logit_bias"}
        return replace(self, **changed, logit_bias=dict(given.logit_bias))


@dataclass(frozen=True)
class HeldTool:
    """A tool that may be called. `arguments` is the JSON Schema of an object, as JSON; `field` names it in errors.

    What cannot be honoured of a `strict` tool is refused.
    """

    name: str
    arguments: str
    field: str
    strict: bool = False


@dataclass(frozen=True)
class HeldAnswer:
    """What an answer may be. `tools` are those that may be called; there is one at least.

    `required`: nothing but calls, and at least one. `single`: at most one call. `json_schema`: what text has to fit, in
    which case the answer is either text or calls; otherwise any text may stand around calls.
    """

    tools: tuple[HeldTool, ...]
    required: bool = False
    single: bool = False
    json_schema: str | None = None


@dataclass(frozen=True)
class TurnRequest:
    """One turn. `digest` is the hash of what makes it the same turn again; `generates` is False for Prefill.

    `memory_mode` says how an input that is no append relates to a memory that is there. `expiry` and `context_policy`
    are the agent's if the turn creates it. `json_schema` is what the text has to fit: the JSON of an object, of bounded
    size and depth. `held` is what an answer that may call tools is held to; None: to nothing. `template_time` is what
    the agent's becomes, in ISO 8601; "" if it stays.
    """

    key: AgentKey
    input: TurnInput
    digest: bytes
    request_id: str = ""
    if_version: int | None = None
    if_revision: bytes = b""
    sampling: types_pb2.Sampling = field(default_factory=types_pb2.Sampling)
    """As it is given; the rest is as the model has it."""
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
        """The definitions of tools that the input brings."""
        content = self.input.content if isinstance(self.input, AppendInput) else self.input
        return content.tools if isinstance(content, MessagesInput) else ()

    @property
    def anonymous(self) -> bool:
        """Nothing is kept."""
        return not self.key.agent_id

    @property
    def commits(self) -> bool:
        """The turn will be in the ledger."""
        return not self.anonymous and self.cache_policy != inference_pb2.CACHE_POLICY_READ_ONLY


@dataclass(frozen=True)
class ToolCall:
    """A call of a tool that the model made; its arguments are a JSON object, as text."""

    id: str
    name: str
    arguments_json: str


class CallPart(NamedTuple):
    """More of the arguments of a call that is not complete; the first part has its name."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True)
class TokenEvent:
    """One generated token: its log-probability before filters, the most likely others, what text and calls it ended.

    It was sampled `at` that time of the monotonic clock, in seconds. `reasoning` came before `text`; `in_reasoning`
    says that nothing of the token is in the answer.
    """

    token_id: int
    logprob: float | None
    top: tuple[tuple[int, float], ...]
    text: str
    calls: tuple[ToolCall, ...] = ()
    at: float = 0.0
    reasoning: str = ""
    in_reasoning: bool = False
    parts: tuple[CallPart, ...] = ()

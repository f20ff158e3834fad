"""Limits that all APIs share: elements of a request, and values of sampling parameters."""

import math
from collections.abc import Mapping
from typing import Final, NamedTuple

from google.protobuf.descriptor import FieldDescriptor

from agentmem.errors import InvalidArgument
from agentmem.v1 import options_pb2, types_pb2

# Repeated fields of requests.

MAX_MESSAGES: Final = 20_000
MAX_TOKEN_IDS: Final = 4 * 1024 * 1024
MAX_TOOLS: Final = 1024
MAX_LOGIT_BIASES: Final = 1024
MAX_STOPS: Final = 16
MAX_HASHES: Final = 10_000
MAX_HINTS: Final = 1000
MAX_VARIABLES: Final = 1000


class Repeated(NamedTuple):
    """The most elements of a repeated field or a map; None: as many as fit a message. `then` says what checks it later.

    They are counted before decoding, because a decoded message may take fifty times its bytes.
    """

    most: int | None
    then: str


_OWN: Final = Repeated(None, "our own processes send it, and channels bound its bytes: channels.MAX_MESSAGE_BYTES")

REPEATED: Final[Mapping[str, Repeated]] = {
    "Messages.messages": Repeated(
        MAX_MESSAGES, "against the model's context: inference_service/turns/decoding.py:check_input"
    ),
    "TokenIds.ids": Repeated(
        MAX_TOKEN_IDS, "against context and vocabulary: inference_service/turns/decoding.py:check_input"
    ),
    "Sampling.logit_bias": Repeated(
        MAX_LOGIT_BIASES,
        "each bias by SAMPLING; ids against the vocabulary: inference_service/turns/decoding.py:check_input",
    ),
    "GenerateRequest.stop": Repeated(MAX_STOPS, "each by its bytes: inference_service/servicers/requests.py:_stops"),
    "ToolChoice.names": Repeated(MAX_TOOLS, "against the tools: inference_service/servicers/requests.py:held_answer"),
    "ToolChoice.strict": Repeated(MAX_TOOLS, "against the tools: inference_service/servicers/requests.py:held_answer"),
    "FindAgentRequest.message_hashes": Repeated(
        MAX_HASHES, "each by its bytes: cache_service/rpc/conversions.py:message_hashes"
    ),
    "SetTurnHintsRequest.hints": Repeated(MAX_HINTS, "each by its key: protos/agentmem/kv/hints.py:from_request"),
    "RunWorkflowRequest.variables": Repeated(
        MAX_VARIABLES, "against the file's: gateway/workflows/definition/parser.py:load"
    ),
    "CheckWorkflowRequest.variables": Repeated(
        MAX_VARIABLES, "against the file's: gateway/workflows/definition/parser.py:load"
    ),
    **dict.fromkeys(
        (
            *("OpenCacheRequest.block_hashes", "OpenCacheRequest.window_hashes", "FetchBlocksRequest.names"),
            *("StageBlocksRequest.names", "PublishBlocksRequest.files", "PublishBlocksRequest.references"),
            *("CommitTurnRequest.token_ids", "CommitTurnRequest.offsets", "CommitTurnRequest.message_hashes"),
            *("CommitTurnRequest.carried_turns", "TurnRecord.messages", "CacheReport.cached", "Usage.cached"),
            *("Delta.token_ids", "Delta.logprobs", "Delta.tool_calls", "Delta.tool_call_parts", "TokenLogprob.top"),
            *("Ledger.token_ids", "Ledger.offsets", "Ledger.turns", "PutWorkflowRecordRequest.events"),
            *("SyncNodeRequest.models", "SyncNodeRequest.running"),
        ),
        _OWN,
    ),
}


# Sampling parameters.


class Bounds(NamedTuple):
    """The range of a parameter, from `low` (excluded if `open`) to `high`."""

    low: float
    high: float
    open: bool = False

    def __contains__(self, value: object) -> bool:
        if not isinstance(value, int | float) or not math.isfinite(value):
            return False
        return self.low <= value <= self.high and not (self.open and value == self.low)

    def __str__(self) -> str:
        return f"{'above' if self.open else 'from'} {self.low:g} to {self.high:g}"


_WHOLE: Final = {FieldDescriptor.TYPE_UINT32: Bounds(0, 2**32 - 1), FieldDescriptor.TYPE_UINT64: Bounds(0, 2**64 - 1)}


def _bounds(field: FieldDescriptor) -> Bounds:
    said = field.GetOptions().Extensions[options_pb2.bounds]
    return _WHOLE.get(field.type) or Bounds(said.low, said.high, said.open)


SAMPLING: Final[Mapping[str, Bounds]] = {
    field.name: _bounds(field)
    for field in types_pb2.Sampling.DESCRIPTOR.fields
    if field.type != FieldDescriptor.TYPE_BOOL
}
"""By field of `Sampling`, and for each value of a map. A dialect may allow less."""


def check_sampling(sampling: types_pb2.Sampling) -> None:
    """Raise InvalidArgument for a value out of bounds."""
    for field, value in sampling.ListFields():
        if (bounds := SAMPLING.get(field.name)) is None:
            continue
        if field.name != "logit_bias":
            _check(bounds, f"sampling.{field.name}", value)
            continue
        for token_id, bias in sampling.logit_bias.items():
            _check(bounds, f"sampling.logit_bias[{token_id}]", bias)


def _check(bounds: Bounds, field: str, value: float) -> None:
    # The contract's floats have seven digits: 0.01 arrives a little smaller.
    if (float(f"{value:.7g}") if isinstance(value, float) else value) not in bounds:
        raise InvalidArgument(field, f"must be a number {bounds}, is {value:g}")

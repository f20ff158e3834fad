"""Limits that all APIs share."""

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


REPEATED: Final[Mapping[str, int]] = {
    "Messages.messages": MAX_MESSAGES,
    "TokenIds.ids": MAX_TOKEN_IDS,
    "Sampling.logit_bias": MAX_LOGIT_BIASES,
    "GenerateRequest.stop": MAX_STOPS,
    "ToolChoice.names": MAX_TOOLS,
    "ToolChoice.strict": MAX_TOOLS,
    "FindAgentRequest.message_hashes": MAX_HASHES,
    "SetTurnHintsRequest.hints": MAX_HINTS,
    "RunWorkflowRequest.variables": MAX_VARIABLES,
    "CheckWorkflowRequest.variables": MAX_VARIABLES,
}
"""The most elements of each repeated field that callers send, counted before decoding: a decoded message may take fifty
times its bytes.
"""


# Sampling parameters.


class Bounds(NamedTuple):
    """From `low` (excluded if `open`) to `high`."""

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
    """Raises InvalidArgument."""
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

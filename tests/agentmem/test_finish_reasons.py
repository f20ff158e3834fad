from typing import Any

import pytest

from agentmem.v1 import types_pb2
from agentmem.words import cut_short, finish_reason


@pytest.mark.parametrize(
    ("reason", "word"),
    [
        (types_pb2.FINISH_REASON_STOP, "stop"),
        (types_pb2.FINISH_REASON_STOP_STRING, "stop"),
        (types_pb2.FINISH_REASON_LENGTH, "length"),
        (types_pb2.FINISH_REASON_CONTEXT, "length"),
        (types_pb2.FINISH_REASON_TOOL_CALLS, "tool_calls"),
    ],
)
def test_finish_reasons(reason: Any, word: str) -> None:
    assert finish_reason(reason) == word
    assert cut_short(reason) == (word == "length")

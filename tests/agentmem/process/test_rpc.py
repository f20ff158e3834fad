from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from agentmem import errors
from agentmem.process import rpc
from agentmem.process.grpc_metrics import UNCOUNTED


async def test_a_stream_with_a_message_that_does_not_parse_is_read_to_its_end() -> None:
    """A client whose call ends while it still writes may read INTERNAL instead."""
    read: list[object] = []

    async def requests() -> AsyncIterator[object]:
        for message in (errors.InvalidArgument("request", "is no message"), "second", "third"):
            read.append(message)
            yield message

    context = cast(Any, SimpleNamespace(time_remaining=lambda: None))
    with pytest.raises(errors.InvalidArgument):
        async for _ in rpc._Call(requests(), context, "/m", UNCOUNTED, False).request:
            pass
    assert read[1:] == ["second", "third"]

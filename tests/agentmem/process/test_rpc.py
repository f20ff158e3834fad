from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any, cast

import grpc
import pytest

from agentmem import errors
from agentmem.process import rpc
from agentmem.process.grpc_metrics import UNCOUNTED
from agentmem.v1 import agent_pb2, cache_store_pb2, inference_pb2, model_pb2, workflow_pb2


@pytest.mark.parametrize("file", [agent_pb2, cache_store_pb2, inference_pb2, model_pb2, workflow_pb2])
def test_every_rpcs_arity_names_what_serves_it(file: object) -> None:
    for service in file.DESCRIPTOR.services_by_name.values():  # type: ignore[attr-defined]
        for method in service.methods:
            arity = rpc.arity(method.client_streaming, method.server_streaming)
            assert hasattr(grpc.aio.Channel, arity)
            behaviour = object()
            made = rpc.maker(arity)(behaviour)
            assert (made.request_streaming, made.response_streaming) == (
                method.client_streaming,
                method.server_streaming,
            )


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

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentmem.errors import InvalidArgument, from_rpc
from agentmem.interceptors import ErrorInterceptor
from agentmem.v1 import workflow_pb2, workflow_pb2_grpc
from gateway.workflows.definition.load import load
from gateway.workflows.definition.mistakes import MAX_MISTAKES, MalformedDefinition, Mistake, Position, field_at


def test_mistakes_are_sorted_and_those_of_the_run_come_first() -> None:
    error = MalformedDefinition(
        [Mistake("b", "y", Position(2, 1)), Mistake("a", "x", Position(1, 9)), Mistake("c", "z")]
    )
    assert error.violations == (("c", "z"), ("a", "line 1, column 9: x"), ("b", "line 2, column 1: y"))
    assert (error.field, error.problem) == ("c", "z")
    assert error.message == "c: z (and 2 more)"


@given(st.integers(1, 200), st.integers(0, 300))
def test_more_than_can_be_told_are_counted(count: int, length: int) -> None:
    error = MalformedDefinition([Mistake(f"f{i}", "x" * length, Position(i, 1)) for i in range(count)])
    told = error.violations
    assert len(told) <= MAX_MISTAKES
    assert error.to_status().ByteSize() < 6 * 1024  # 8 KiB as base64
    if told[-1].field == "definition":
        assert told[-1].problem == f"has {count - len(told) + 1} more mistakes"
        assert len(told) > 1
    else:
        assert len(told) == count


def test_fields() -> None:
    assert field_at(()) == "definition"
    assert field_at(("phases", 0, "prompts", "*")) == "phases[0].prompts.*"
    assert field_at(("agents", "what was said", "id")) == "agents.(a name).id"
    assert len(field_at(("a" * 64,) * 60)) == 201


class _Loading(workflow_pb2_grpc.WorkflowServiceServicer):
    async def GetWorkflow(
        self, request: workflow_pb2.GetWorkflowRequest, context: object
    ) -> workflow_pb2.GetWorkflowResponse:
        load(request.workflow_id, {})
        return workflow_pb2.GetWorkflowResponse()


async def test_a_plain_client_gets_all_of_them_back() -> None:
    """One whose options are gRPC's own: it takes 8 KiB of metadata."""
    server = grpc.aio.server(interceptors=(ErrorInterceptor(),))
    workflow_pb2_grpc.add_WorkflowServiceServicer_to_server(_Loading(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            stub = workflow_pb2_grpc.WorkflowServiceStub(channel)
            for text in ("workflow: 3\nx: 1", "\n".join(f"unknown_field_{i}: 1" for i in range(100))):
                with pytest.raises(MalformedDefinition) as here:
                    load(text, {})
                with pytest.raises(grpc.aio.AioRpcError) as there:
                    await stub.GetWorkflow(workflow_pb2.GetWorkflowRequest(workflow_id=text))
                back = from_rpc(there.value)
                assert isinstance(back, InvalidArgument)
                assert len(back.violations) > 3
                assert back.violations == here.value.violations
                assert back.message == here.value.message
    finally:
        await server.stop(None)

"""The events of a run, through lost connections: each once, in their order."""

from collections.abc import Callable

import grpc

from agentmem.channels import closing_stream
from agentmem.errors import Unavailable
from agentmem.v1 import workflow_pb2, workflow_pb2_grpc
from gateway.cli.client import outage, retrying
from gateway.cli.run.state import Run

_LOST = "the connection to the gateway was lost"


async def follow(
    channel: grpc.aio.Channel,
    request: workflow_pb2.RunWorkflowRequest,
    run: Run,
    told: Callable[[workflow_pb2.RunWorkflowResponse], None],
    on_outage: Callable[[str], None],
) -> None:
    """Tell `run` all events of the workflow until it has ended, and then `told` each of them.

    A connection that is lost is made again for up to PATIENCE seconds, counted from the last event that was new; the
    same request_id joins the run that goes on meanwhile, after the events that are known. `on_outage` gets the reason,
    once. Raises what ends it otherwise.
    """
    waiting = False

    def lost(why: str) -> None:
        nonlocal waiting
        if not waiting:
            on_outage(why)
        waiting = True

    async def attempt() -> None:
        nonlocal waiting
        request.after_sequence = known = run.sequence
        call = workflow_pb2_grpc.WorkflowServiceStub(channel).RunWorkflow(request)
        try:
            async with closing_stream(call) as events:
                async for event in events:
                    if run.tell(event):
                        waiting = False
                        told(event)
            if not run.finished:
                raise Unavailable(_LOST)
        except (grpc.aio.AioRpcError, Unavailable) as error:
            if run.finished:
                return
            run.broke()
            why = outage(error, _LOST)
            if why is None or run.sequence == known:
                raise
            lost(why.message)

    while not run.finished:
        # A gateway that was never reached is more likely a wrong address than an outage.
        await retrying(attempt, lost, gateway_too=run.sequence > 0)

"""`agentmem workflows`: the runs that there are and were, ending them, and erasing their records."""

import sys
from collections.abc import Sequence
from datetime import UTC, datetime

import click
import grpc
from rich.table import Table
from rich.text import Text

from agentmem.v1 import workflow_pb2, workflow_pb2_grpc
from gateway.cli.client import ask, gateway_option, hand_down, json_option, not_empty, retrying, write_json
from gateway.cli.contract_json import as_dict
from gateway.cli.run.transcript import state_name
from gateway.cli.text import age, console, counted, printable

_ENDED = (
    workflow_pb2.WORKFLOW_STATE_SUCCEEDED,
    workflow_pb2.WORKFLOW_STATE_FAILED,
)


_id_argument = click.argument(
    "workflow_id", metavar="ID", callback=not_empty("the run's ID must not be empty; `agentmem workflows` lists them")
)


@click.group(invoke_without_command=True)
@gateway_option
@json_option
@click.pass_context
def workflows(context: click.Context, gateway: str, as_json: bool) -> None:
    """Show, cancel or erase runs of workflows. Without a command: list them, the newest first."""
    if hand_down(context, gateway, as_json=as_json):
        _list(gateway, as_json=as_json)


@workflows.command("list")
@gateway_option
@json_option
def list_workflows(gateway: str, as_json: bool) -> None:
    """List the runs, the newest first."""
    _list(gateway, as_json=as_json)


@workflows.command()
@_id_argument
@gateway_option
@json_option
def show(workflow_id: str, gateway: str, as_json: bool) -> None:
    """Show how far a run is, and who takes part. `agentmem run --resume ID` shows what was said."""

    async def question(channel: grpc.aio.Channel) -> workflow_pb2.Workflow:
        stub = workflow_pb2_grpc.WorkflowServiceStub(channel)
        found = await retrying(lambda: stub.GetWorkflow(workflow_pb2.GetWorkflowRequest(workflow_id=workflow_id)))
        return found.workflow

    found = ask(gateway, question)
    if as_json:
        write_json(as_dict(found))
        return
    console().print(_described(found, datetime.now(UTC)))
    console().print(agents_table(found))


@workflows.command()
@_id_argument
@gateway_option
@json_option
def cancel(workflow_id: str, gateway: str, as_json: bool) -> None:
    """End a run. Turns that are running are dropped; what was said before stays."""

    async def question(channel: grpc.aio.Channel) -> workflow_pb2.Workflow:
        stub = workflow_pb2_grpc.WorkflowServiceStub(channel)
        request = workflow_pb2.CancelWorkflowRequest(workflow_id=workflow_id)
        return (await retrying(lambda: stub.CancelWorkflow(request))).workflow

    ended = ask(gateway, question)
    if as_json:
        write_json(as_dict(ended))
    elif ended.state in _ENDED:
        click.echo(f"{printable(workflow_id)} had ended: {state_name(ended)}")
    else:
        click.echo(f"cancelled {printable(workflow_id)} after {counted(ended.turns, 'turn')}")


@workflows.command()
@_id_argument
@click.option("--yes", is_flag=True, help="Do not ask.")
@gateway_option
@json_option
def delete(workflow_id: str, yes: bool, gateway: str, as_json: bool) -> None:
    """Erase a run's record, with all that was said in it. Agents that persist stay. A terminal is asked before."""
    if sys.stdin.isatty() and not yes:
        click.confirm(f"Erase the record of {printable(workflow_id)} for good?", abort=True)

    async def question(channel: grpc.aio.Channel) -> None:
        stub = workflow_pb2_grpc.WorkflowServiceStub(channel)
        request = workflow_pb2.DeleteWorkflowRequest(workflow_id=workflow_id)
        await retrying(lambda: stub.DeleteWorkflow(request))

    ask(gateway, question)
    if as_json:
        write_json({"workflow_id": workflow_id, "deleted": True})
    else:
        click.echo(f"erased the record of {printable(workflow_id)}")


async def find(channel: grpc.aio.Channel) -> list[workflow_pb2.Workflow]:
    """All runs, over all pages, the newest first."""
    stub = workflow_pb2_grpc.WorkflowServiceStub(channel)
    found: list[workflow_pb2.Workflow] = []
    request = workflow_pb2.ListWorkflowsRequest()
    while True:
        page = await retrying(lambda: stub.ListWorkflows(request))
        found += page.workflows
        request.page_token = page.next_page_token
        if not page.next_page_token:
            return found


_ID_WIDTH = 36
"""Letters of a UUID."""


def workflows_table(found: Sequence[workflow_pb2.Workflow], now: datetime) -> Table:
    """The runs for people; phase and start are in `show`, so that 80 columns have room for a whole id."""
    table = Table(box=None, pad_edge=False)
    longest = max((len(printable(workflow.workflow_id)) for workflow in found), default=0)
    table.add_column("id", overflow="fold", no_wrap=longest <= _ID_WIDTH)
    table.add_column("workflow", overflow="fold")
    table.add_column("state", no_wrap=True)
    table.add_column("turns", justify="right", no_wrap=True)
    table.add_column("last turn", no_wrap=True)
    for workflow in found:
        table.add_row(
            Text(printable(workflow.workflow_id)),
            Text(printable(workflow.name)),
            state_name(workflow),
            f"{workflow.turns:,}",
            age(workflow.update_time, now),
        )
    return table


def agents_table(workflow: workflow_pb2.Workflow) -> Table:
    """Who takes part in a run, and whose memory that is."""
    table = Table(box=None, pad_edge=False)
    for name in ("agent", "memory", "model"):
        table.add_column(name, overflow="fold")
    table.add_column("stays", no_wrap=True)
    for agent in workflow.agents:
        names = (agent.name, agent.key.agent_id, agent.key.model_id)
        table.add_row(*(Text(printable(name)) for name in names), "yes" if agent.persists else "no")
    return table


def _described(workflow: workflow_pb2.Workflow, now: datetime) -> Table:
    rows = {
        "id": workflow.workflow_id,
        "workflow": workflow.name,
        "state": state_name(workflow),
        "error": workflow.error,
        "phase": workflow.phase,
        "turns": f"{workflow.turns:,}",
        "started": age(workflow.create_time, now),
        "last turn": age(workflow.update_time, now),
    }
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(no_wrap=True, min_width=12)
    table.add_column(overflow="fold")
    for name, value in rows.items():
        if value:
            table.add_row(name, Text(printable(value)))
    return table


def _list(gateway: str, *, as_json: bool) -> None:
    found = ask(gateway, find)
    if as_json:
        # Who takes part is not told in a list.
        write_json([{k: v for k, v in as_dict(one).items() if k != "agents"} for one in found])
    elif found:
        console().print(workflows_table(found, datetime.now(UTC)))
    else:
        click.echo("no runs yet; `agentmem run FILE` starts one")

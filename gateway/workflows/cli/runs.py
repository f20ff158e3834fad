import sys
from collections.abc import Sequence
from datetime import UTC, datetime

import click
from rich.table import Table

from agentmem import AsyncClient
from agentmem.console import FOLD, LINE, RIGHT, table
from agentmem.v1 import workflow_pb2
from agentmem.words import printable
from gateway.api.contract_json import to_json
from gateway.cli.client import NOT_EMPTY, Client, client_options
from gateway.cli.groups import DefaultGroup
from gateway.cli.text import age, counted, described
from gateway.workflows.cli.view import state_name

_ENDED = (workflow_pb2.WORKFLOW_STATE_SUCCEEDED, workflow_pb2.WORKFLOW_STATE_FAILED)
_ID_WIDTH = 36

_id_argument = click.argument("workflow_id", metavar="ID", type=NOT_EMPTY)


@click.group(cls=DefaultGroup, default="list")
def workflows() -> None:
    """Show, cancel or delete runs of workflows. Without a command: list them, the newest first."""


@workflows.command("list")
@client_options
def list_workflows(client: Client) -> None:
    """List the runs, the newest first."""
    found = client.ask(find)
    none = "no runs yet; `agentmem run FILE` starts one"
    client.show(list(map(to_json, found)), workflows_table(found, datetime.now(UTC)) if found else none)


@workflows.command()
@_id_argument
@client_options
def show(client: Client, workflow_id: str) -> None:
    """Show how far a run is, and who takes part. `agentmem run --resume ID` shows what was said."""
    found = client.ask(lambda agentmem: agentmem.workflows.get(workflow_id)).raw
    client.show(to_json(found), described(found))


@workflows.command()
@_id_argument
@client_options
def cancel(client: Client, workflow_id: str) -> None:
    """End a run. Turns that are running are dropped; what was said before stays."""
    ended = client.ask(lambda agentmem: agentmem.workflows.cancel(workflow_id)).raw
    if ended.state in _ENDED:
        line = f"{printable(workflow_id)} had ended: {state_name(ended)}"
    else:
        line = f"cancelled {printable(workflow_id)} after {counted(ended.turns, 'turn')}"
    client.show(to_json(ended), line)


@workflows.command()
@_id_argument
@click.option("--yes", is_flag=True, help="Do not ask.")
@client_options
def delete(client: Client, workflow_id: str, yes: bool) -> None:
    """Delete a run's record, with all that was said in it. Agents that persist stay. A terminal is asked before."""
    if sys.stdin.isatty() and not yes:
        click.confirm(f"Delete the record of {printable(workflow_id)} for good?", abort=True)
    client.ask(lambda agentmem: agentmem.workflows.delete(workflow_id))
    client.show({"workflow_id": workflow_id, "deleted": True}, f"deleted the record of {printable(workflow_id)}")


async def find(agentmem: AsyncClient) -> list[workflow_pb2.Workflow]:
    return [run.raw async for run in agentmem.workflows.list()]


def workflows_table(found: Sequence[workflow_pb2.Workflow], now: datetime) -> Table:
    longest = max((len(printable(workflow.workflow_id)) for workflow in found), default=0)
    ids = {**FOLD, "no_wrap": longest <= _ID_WIDTH}
    rows = ((one.workflow_id, one.name, state_name(one), f"{one.turns:,}", age(one.update_time, now)) for one in found)
    return table({"id": ids, "workflow": FOLD, "state": LINE, "turns": RIGHT, "last turn": LINE}, rows)

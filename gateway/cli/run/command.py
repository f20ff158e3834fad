"""`agentmem run FILE`: run a workflow, and show it."""

import json
import uuid
from functools import partial
from pathlib import Path

import click
import grpc

from agentmem import layout
from agentmem.errors import InvalidArgument, NotFound, from_rpc
from agentmem.v1 import workflow_pb2
from gateway.cli.client import ask, gateway_option, json_option
from gateway.cli.mistakes import Mistake
from gateway.cli.report.write import prepare, write_report
from gateway.cli.run import source
from gateway.cli.run.following import follow
from gateway.cli.run.state import Run
from gateway.cli.run.transcript import state_name
from gateway.cli.run.view import View, view_of
from gateway.cli.text import printable
from gateway.workflows.definition.schema import json_schema

_INTERRUPTED = 130
_MAX_ID_BYTES = 128


@click.command()
@click.argument("file", required=False, type=click.Path(path_type=Path))
@click.option("--set", "settings", multiple=True, metavar="NAME=VALUE", help="Replace a variable's value; repeatable.")
@click.option("--resume", "workflow_id", metavar="ID", help="Show a run from its beginning; go on where it broke off.")
@click.option("--request-id", metavar="ID", help="Names the run: the same again shows it, and starts no other.")
@click.option("--report", type=click.Path(path_type=Path), metavar="DIR", help="Write report.md and report.html there.")
@click.option("--check", is_flag=True, help="Only say what is wrong with FILE. Needs no gateway.")
@click.option("--schema", is_flag=True, help="Write the JSON Schema of workflow files. Needs no gateway.")
@gateway_option
@json_option
def run(
    file: Path | None,
    settings: tuple[str, ...],
    workflow_id: str | None,
    request_id: str | None,
    report: Path | None,
    check: bool,
    schema: bool,
    gateway: str,
    as_json: bool,
) -> None:
    """Run the workflow in FILE, and show who speaks, what, and what memory gave.

    The run is the gateway's: it goes on when this command ends, and a lost connection is made again. With --json a
    line for each event. Ends with 0 if the run succeeded, 1 if not, and 2 if there is something to mend.
    """
    if schema:
        click.echo(json.dumps(json_schema(), indent=2, ensure_ascii=False))
        return
    if (file is None) == (workflow_id is None):
        raise Mistake("name a workflow file, or a run with --resume ID; `agentmem workflows` lists runs")
    given = source.variables(settings)
    if file is None:
        if given or request_id is not None or check:
            raise Mistake("--set, --request-id and --check are for a file, not for --resume")
        request = workflow_pb2.RunWorkflowRequest(resume_workflow_id=_named(workflow_id))
    else:
        text = source.read(file)
        if check:
            click.echo(f"{printable(str(file))}: {source.check(file, text, given)} can be run")
            return
        request = workflow_pb2.RunWorkflowRequest(
            definition_yaml=text, variables=given, request_id=_request_id(request_id)
        )
    if report is not None:
        prepare(report)
    shown = Run()
    view = view_of(shown, as_json=as_json)
    try:
        ask(gateway, partial(_followed, request=request, view=view, file=file))
    except KeyboardInterrupt:
        click.echo(f"\n{_goes_on(shown, file, request, gateway)}", err=True)
        raise click.exceptions.Exit(_INTERRUPTED) from None
    except click.ClickException as error:
        if isinstance(error, Mistake) or not shown.sequence:
            raise
        raise click.ClickException(f"{error.message}; {_goes_on(shown, file, request, gateway)}") from error
    view.ended()
    if report is not None:
        for path in write_report(report, shown):
            click.echo(f"wrote {printable(str(path))}", err=as_json)
    _end(shown, gateway)


async def _followed(
    channel: grpc.aio.Channel, request: workflow_pb2.RunWorkflowRequest, view: View, file: Path | None
) -> None:
    try:
        with view:
            await follow(channel, request, view.run, view.told, view.outage)
    except grpc.aio.AioRpcError as error:
        failure = from_rpc(error)
        if isinstance(failure, InvalidArgument):
            raise source.refused(file, failure.violations) from error
        if isinstance(failure, NotFound) and failure.kind == "workflow":
            raise click.ClickException(f"{failure.message}; `agentmem workflows` lists the runs") from error
        raise


def _named(workflow_id: str | None) -> str:
    if not workflow_id:
        raise Mistake("--resume must not be empty; `agentmem workflows` lists the runs")
    return workflow_id


def _request_id(given: str | None) -> str:
    if given is None:
        return f"run-{uuid.uuid4().hex}"
    if not 1 <= len(given.encode(errors="surrogateescape")) <= _MAX_ID_BYTES:
        raise Mistake(f"--request-id must have 1 to {_MAX_ID_BYTES} bytes")
    return given


def _goes_on(run: Run, file: Path | None, request: workflow_pb2.RunWorkflowRequest, gateway: str) -> str:
    """What to do about a run that is no longer watched."""
    there = _there(gateway)
    if name := run.workflow.workflow_id or request.resume_workflow_id:
        name = printable(name) + there
        return f"the run goes on: `agentmem run --resume {name}` shows it, `agentmem workflows cancel {name}` ends it"
    again = f"{printable(str(file))} --request-id {printable(request.request_id)}{there}"
    return f"the run may have begun: `agentmem workflows{there}` lists runs, and `agentmem run {again}` shows this one"


def _there(gateway: str) -> str:
    """What it takes to reach the same gateway again."""
    return "" if gateway == layout.GRPC else f" --gateway {gateway}"


def _end(run: Run, gateway: str) -> None:
    """Raises ClickException for a run that did not succeed."""
    workflow = run.workflow
    if workflow.state == workflow_pb2.WORKFLOW_STATE_SUCCEEDED:
        return
    name = printable(workflow.workflow_id)
    where = f" in phase {printable(workflow.phase)}" if workflow.phase else ""
    why = f": {printable(workflow.error)}" if workflow.error else ""
    again = ""
    if workflow.state != workflow_pb2.WORKFLOW_STATE_CANCELLED:
        again = f"; `agentmem run --resume {name}{_there(gateway)}` tries again at the last finished turn"
    ended = "failed" if workflow.state == workflow_pb2.WORKFLOW_STATE_FAILED else f"was {state_name(workflow)}"
    raise click.ClickException(f"run {name} {ended}{where}{why}{again}")

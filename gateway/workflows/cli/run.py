import json
import uuid
from collections.abc import Iterable
from pathlib import Path

import click
from rich.text import Text

from agentmem import AsyncClient
from agentmem.console import Mistake, console, write_json
from agentmem.diagnostics import Diagnostic
from agentmem.errors import InvalidArgument, NotFound
from agentmem.v1 import workflow_pb2
from agentmem.validation import MAX_WORKFLOW_BYTES
from agentmem.words import printable
from gateway.api.contract_json import to_json
from gateway.cli.client import NOT_EMPTY, Client, client_options
from gateway.cli.groups import needing_servers
from gateway.workflows.cli.view import Lines, state_name

_INTERRUPTED = 130


@click.command()
@click.argument("file", required=False, type=click.Path(path_type=Path))
@click.option("--set", "settings", multiple=True, metavar="NAME=VALUE", help="Replace a variable's value; repeatable.")
@click.option(
    "--resume",
    "workflow_id",
    metavar="ID",
    help="Show a run from its beginning; go on where it broke off.",
    type=NOT_EMPTY,
)
@click.option(
    "--request-id",
    metavar="ID",
    help="Names the run: the same again shows it, and starts no other.",
    type=NOT_EMPTY,
)
@click.option("--check", is_flag=True, help="Only say what is wrong with FILE. Needs no gateway.")
@click.option("--schema", is_flag=True, help="Write the JSON Schema of workflow files. Needs no gateway.")
@client_options
def run(
    client: Client,
    file: Path | None,
    settings: tuple[str, ...],
    workflow_id: str | None,
    request_id: str | None,
    check: bool,
    schema: bool,
) -> None:
    """Run the workflow in FILE, and show who speaks, what, and what memory gave.

    The run is the gateway's: it goes on when this command ends, and a lost connection is made again. With --json a
    line for each event. Ends with 0 if the run succeeded, 1 if not, and 2 if there is something to mend.
    """
    if schema:
        with needing_servers():
            from gateway.workflows.definition.schema import json_schema
        click.echo(json.dumps(json_schema(), indent=2, ensure_ascii=False))
        return
    if (file is None) == (workflow_id is None):
        raise Mistake("name a workflow file, or a run with --resume ID; `agentmem workflows` lists runs")
    variables = _variables(settings)
    if file is None:
        if variables or request_id is not None or check:
            raise Mistake("--set, --request-id and --check are for a file, not for --resume")
        request = workflow_pb2.RunWorkflowRequest(resume_workflow_id=workflow_id or "")
    else:
        text = _read(file)
        if check:
            click.echo(f"{printable(str(file))}: {_checked(file, text, variables)} can be run")
            return
        name = request_id or f"run-{uuid.uuid4().hex}"
        request = workflow_pb2.RunWorkflowRequest(definition_yaml=text, variables=variables, request_id=name)
    _follow(client, request, file)


class Shown:
    def __init__(self, *, as_json: bool) -> None:
        self.workflow = workflow_pb2.Workflow()
        """As it began, or ended."""
        self._as_json = as_json
        self._lines, self._console = Lines(), console()

    def add(self, event: workflow_pb2.RunWorkflowResponse) -> None:
        if event.HasField("started") or event.HasField("finished"):
            self.workflow = (event.started if event.HasField("started") else event.finished).workflow
        if self._as_json:
            write_json(to_json(event))
            return
        for line in self._lines.of(event):
            self._console.print(line, soft_wrap=isinstance(line, Text))


def _follow(client: Client, request: workflow_pb2.RunWorkflowRequest, file: Path | None) -> None:
    """Raises ClickException where the run did not succeed."""
    shown = Shown(as_json=client.as_json)

    async def question(agentmem: AsyncClient) -> None:
        try:
            async for event in agentmem.workflows.raw_events(request):
                if event is not None:
                    shown.add(event)
        except InvalidArgument as failure:
            raise _refused(file, map(Diagnostic.of_violation, failure.violations)) from failure
        except NotFound as failure:
            if failure.kind == "workflow":
                raise click.ClickException(f"{failure.message}; `agentmem workflows` lists the runs") from failure
            raise

    try:
        client.ask(question, _outage)
    except KeyboardInterrupt:
        click.echo(f"\n{_goes_on(shown, file, request)}", err=True)
        raise click.exceptions.Exit(_INTERRUPTED) from None
    except click.ClickException as error:
        if isinstance(error, Mistake) or not shown.workflow.workflow_id:
            raise
        raise click.ClickException(f"{error.message}; {_goes_on(shown, file, request)}") from error
    _end(shown.workflow)


def _outage(why: str) -> None:
    click.echo(f"… waiting: {printable(why)}; the run goes on where it was", err=True)


def _read(path: Path) -> str:
    name = printable(str(path))
    try:
        if path.is_dir():
            raise Mistake(f"{name} is a directory; name a workflow file")
        with open(path, "rb") as file:
            data = file.read(MAX_WORKFLOW_BYTES + 1)
        if len(data) > MAX_WORKFLOW_BYTES:
            raise Mistake(f"{name} is larger than {MAX_WORKFLOW_BYTES:,} bytes, the most that a workflow file may have")
        return data.decode()
    except OSError as error:
        raise Mistake(f"{name} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise Mistake(f"{name}:{line}: is not UTF-8") from error


def _variables(settings: Iterable[str]) -> dict[str, str]:
    """Return `--set NAME=VALUE` as names and values. Raises Mistake."""
    given: dict[str, str] = {}
    for setting in settings:
        name, equals, value = setting.partition("=")
        if not (name and equals):
            raise Mistake(f"--set {printable(setting)}: write NAME=VALUE")
        if name in given:
            raise Mistake(f"--set {printable(name)} is given more than once")
        given[name] = value
    return given


def _checked(path: Path, text: str, variables: dict[str, str]) -> str:
    """Return the workflow's name. Raises Mistake."""
    with needing_servers():  # the gateway checks a workflow that is run
        from gateway.workflows.definition.parser import MalformedDefinition, load
    try:
        return load(text, variables).workflow
    except MalformedDefinition as error:
        raise _refused(path, error.diagnostics) from error


def _refused(path: Path | None, diagnostics: Iterable[Diagnostic]) -> Mistake:
    """Return lines "FILE:LINE:COLUMN: field: problem"."""
    lines = [printable(one.render(path if path and one.line else "Error")) for one in diagnostics]
    return Mistake("\n".join(lines), located=True)


def _goes_on(shown: Shown, file: Path | None, request: workflow_pb2.RunWorkflowRequest) -> str:
    if name := printable(shown.workflow.workflow_id or request.resume_workflow_id):
        return f"the run goes on: `agentmem run --resume {name}` shows it, `agentmem workflows cancel {name}` ends it"
    again = f"{printable(str(file))} --request-id {printable(request.request_id)}"
    return f"the run may have begun: `agentmem workflows` lists runs, and `agentmem run {again}` shows this one"


def _end(workflow: workflow_pb2.Workflow) -> None:
    if workflow.state == workflow_pb2.WORKFLOW_STATE_SUCCEEDED:
        return
    name = printable(workflow.workflow_id)
    where = f" in phase {printable(workflow.phase)}" if workflow.phase else ""
    why = f": {printable(workflow.error)}" if workflow.error else ""
    again = f"; `agentmem run --resume {name}` tries again at the last finished turn"
    if workflow.state == workflow_pb2.WORKFLOW_STATE_CANCELLED:
        again = ""
    ended = "failed" if workflow.state == workflow_pb2.WORKFLOW_STATE_FAILED else f"was {state_name(workflow)}"
    raise click.ClickException(f"run {name} {ended}{where}{why}{again}")

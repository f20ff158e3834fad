"""A run as report.html: the view of the page at /ui/, with the run in it."""

import os
from collections.abc import Sequence
from pathlib import Path

import click

from agentmem.console import Mistake
from agentmem.v1 import workflow_pb2
from agentmem.words import printable
from gateway.api.contract_json import to_json
from gateway.ui.report import report

_NAME = "report.html"


def prepare(directory: Path) -> None:
    """Make sure, before anything is run, that files can be written to `directory`. Raises Mistake."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Mistake(f"--report {printable(str(directory))} cannot be made: {error.strerror}") from error
    if not os.access(directory, os.W_OK | os.X_OK):
        raise Mistake(f"--report {printable(str(directory))} cannot be written to")


def write_report(
    directory: Path, workflow: workflow_pb2.Workflow, log: Sequence[workflow_pb2.RunWorkflowResponse]
) -> Path:
    """Write a run with the events of its log, in place of a file that is there. Raises ClickException."""
    path = directory / _NAME
    try:
        path.write_text(html(workflow, log), encoding="utf-8", newline="\n")
    except OSError as error:
        cannot = f"cannot write the report to {printable(str(directory))}: {error.strerror}"
        raise click.ClickException(cannot) from error
    return path


def html(workflow: workflow_pb2.Workflow, log: Sequence[workflow_pb2.RunWorkflowResponse]) -> str:
    """Return a page that needs nothing beside it."""
    return report(to_json(workflow), [to_json(event) for event in log])

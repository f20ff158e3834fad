"""A report's files: report.md, report.html, and plot.svg where matplotlib is installed."""

import os
from pathlib import Path

import click

from gateway.cli.mistakes import Mistake
from gateway.cli.report.content import content_of
from gateway.cli.report.rendering import html, markdown
from gateway.cli.run.state import Run
from gateway.cli.text import printable

_PLOT = "plot.svg"


def prepare(directory: Path) -> None:
    """Make sure, before anything is run, that files can be written to `directory`. Raises Mistake."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Mistake(f"--report {printable(str(directory))} cannot be made: {error.strerror}") from error
    if not os.access(directory, os.W_OK | os.X_OK):
        raise Mistake(f"--report {printable(str(directory))} cannot be written to")


def write_report(directory: Path, run: Run) -> list[Path]:
    """Write the files, in place of those that are there; their paths. Raises ClickException.

    Without matplotlib there is no plot, and a line on standard error says how to get one.
    """
    content = content_of(run)
    svg = _plot(run)
    texts = {
        "report.md": markdown(content, _PLOT if svg is not None else None),
        "report.html": html(content, svg),
    }
    if svg is not None:
        texts[_PLOT] = svg
    try:
        for name, text in texts.items():
            (directory / name).write_text(text, encoding="utf-8", errors="replace", newline="\n")
    except OSError as error:
        raise click.ClickException(
            f"cannot write the report to {printable(str(directory))}: {error.strerror}"
        ) from error
    return [directory / name for name in texts]


def _plot(run: Run) -> str | None:
    try:
        from gateway.cli.report.plot import svg
    except ImportError as error:
        if not (error.name or "").startswith("matplotlib"):
            raise
        click.echo("the report has no plot: it takes matplotlib; `pip install 'agentmem[report]'` brings it", err=True)
        return None
    return svg(run)

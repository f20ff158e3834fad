"""A run as report.md and report.html, and the plot in both. Whatever agents said is escaped."""

import os
import re
from pathlib import Path
from typing import Any

import click
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from gateway.cli.text import Mistake, counted, iso_time, printable
from gateway.cli.turns import match_name, tiers_of
from gateway.cli.workflows.state import Run, Step, Totals, state_name
from gateway.cli.workflows.view import heard, outcome_rows

_PLOT = "plot.svg"
_MARKDOWN = re.compile(r"[\\`*_\[\]|~$!#]")


def prepare(directory: Path) -> None:
    """Make sure, before anything is run, that files can be written to `directory`. Raises Mistake."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Mistake(f"--report {printable(str(directory))} cannot be made: {error.strerror}") from error
    if not os.access(directory, os.W_OK | os.X_OK):
        raise Mistake(f"--report {printable(str(directory))} cannot be written to")


def write_report(directory: Path, run: Run) -> list[Path]:
    """Write the files, in place of those that are there. Return their paths. Raises ClickException.

    Without matplotlib there is no plot, and a line on standard error says how to get one.
    """
    svg = _plot(run)
    texts = {"report.md": markdown(run, _PLOT if svg is not None else None), "report.html": html(run, svg)}
    if svg is not None:
        texts[_PLOT] = svg
    try:
        for name, text in texts.items():
            (directory / name).write_text(text, encoding="utf-8", errors="replace", newline="\n")
    except OSError as error:
        cannot = f"cannot write the report to {printable(str(directory))}: {error.strerror}"
        raise click.ClickException(cannot) from error
    return [directory / name for name in texts]


def _plot(run: Run) -> str | None:
    try:
        from gateway.cli.workflows.plot import svg
    except ImportError as error:
        if not (error.name or "").startswith("matplotlib"):
            raise
        click.echo("the report has no plot: it takes matplotlib; `pip install 'agentmem[report]'` brings it", err=True)
        return None
    return svg(run)


def html(run: Run, svg: str | None) -> str:
    """Return a page that needs nothing beside it."""
    # The plot is matplotlib's own document, in which names are escaped; a page takes it without its prologue.
    plot = Markup(svg[svg.index("<svg") :]) if svg is not None else None
    return _environment(autoescape=True).get_template("report.html.j2").render(**_content(run), plot=plot)


def markdown(run: Run, plot: str | None) -> str:
    """Return CommonMark with GitHub's tables; `plot` is the file name of the plot beside it."""
    escaped = _environment(finalize=lambda value: escape_markdown(value) if isinstance(value, str) else value)
    return escaped.get_template("report.md.j2").render(**_content(run), plot=plot)


def escape_markdown(text: str) -> str:
    """Return `text` as one line of Markdown that means nothing but itself, in a paragraph or in a table."""
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    text = _MARKDOWN.sub(r"\\\g<0>", text)
    # Bare addresses would become links.
    text = re.sub(r"(?i)\b(https?|ftp)://", r"\1:<!-- -->//", text)
    text = re.sub(r"(?i)\bwww\.", "www<!-- -->.", text)
    return "<br>".join(line.strip() for line in text.split("\n"))


def _environment(**settings: Any) -> Environment:
    environment = Environment(
        loader=PackageLoader("gateway.cli.workflows", ""),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        **settings,
    )
    environment.filters.update(
        counted=counted,
        heard=heard,
        lines=lambda text: printable(text, keep="\n"),
        printable=printable,
        thousands="{:,}".format,
    )
    return environment


def _content(run: Run) -> dict[str, Any]:
    """Return what the templates fill in; they make what agents and models said printable, and escape it."""
    workflow = run.workflow
    facts = {
        "run": workflow.workflow_id,
        "state": state_name(workflow),
        "error": workflow.error,
        "started": iso_time(workflow.create_time),
        "last turn": iso_time(workflow.update_time),
    }
    return {
        "name": printable(workflow.name),
        "facts": {name: printable(value) for name, value in facts.items() if value},
        "members": list(run.members.values()),
        "totals": Totals(run),
        "phases": [
            (
                printable(part.name),
                part.conversation(),
                outcome_rows(part.outcome.outcome_json) if part.outcome is not None else [],
            )
            for part in run.parts.values()
            if part.conversation()
        ],
        "steps": [_row(step) for step in run.steps()],
    }


def _row(step: Step) -> list[str | int]:
    """Return a step in numbers, as the columns of the table of steps have them."""
    event, usage = step.event, step.event.usage
    first = event.timings.time_to_first_token.ToTimedelta().total_seconds()
    kind = "turn" if step.spoke else "note" if step.text else "listening"
    return [
        printable(event.phase),
        event.round,
        printable(event.agent_id),
        f"{kind}, replayed" if event.replayed else kind,
        match_name(event.cache).upper(),
        tiers_of(usage.cached),
        usage.prompt_tokens,
        step.reused,
        step.prefilled,
        f"{first * 1000:,.0f} ms" if usage.completion_tokens else "",
        usage.completion_tokens,
    ]

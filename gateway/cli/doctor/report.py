"""Findings for people, as a table; for machines, as JSON; and as an exit status."""

import json
from collections import Counter
from collections.abc import Sequence
from typing import Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from agentmem.checkup import Finding, State, as_dict
from gateway.cli.text import counted, printable

WELL: Final = 0
PROBLEMS: Final = 1
NOT_CHECKED: Final = 2

_STYLES = {State.OK: "green", State.WARNING: "yellow", State.PROBLEM: "bold red", State.UNKNOWN: "bold magenta"}


def status(findings: Sequence[Finding]) -> int:
    """0: all is well, or could only be better; 1: there are problems; 2: something could not be checked."""
    states = {finding.state for finding in findings}
    if State.PROBLEM in states:
        return PROBLEMS
    return NOT_CHECKED if State.UNKNOWN in states else WELL


def print_report(console: Console, findings: Sequence[Finding]) -> None:
    """A row for each finding, with what to do below what was found; and one line that adds them up."""
    table = Table(box=None, pad_edge=False)
    table.add_column("", no_wrap=True)
    table.add_column("check", overflow="fold", max_width=24)
    table.add_column("found, and → what to do", overflow="fold")
    for finding in findings:
        said = Text(printable(finding.found))
        if finding.advice:
            said.append(f"\n→ {printable(finding.advice)}", style="bold" if finding.state is not State.OK else "dim")
        table.add_row(Text(finding.state.value, style=_STYLES[finding.state]), Text(printable(finding.check)), said)
    console.print(table)
    console.print(Text(f"\n{summary(findings)}", style="bold"))


def summary(findings: Sequence[Finding]) -> str:
    """How many of each kind."""
    states = Counter(finding.state for finding in findings)
    told = [
        f"{states[State.OK]} ok",
        counted(states[State.WARNING], "warning"),
        counted(states[State.PROBLEM], "problem"),
    ]
    if states[State.UNKNOWN]:
        told.append(f"{states[State.UNKNOWN]} not checked")
    return ", ".join(told)


def as_json(findings: Sequence[Finding]) -> str:
    """The same for machines."""
    states = Counter(finding.state for finding in findings)
    return json.dumps(
        {
            "well": status(findings) == WELL,
            "warnings": states[State.WARNING],
            "problems": states[State.PROBLEM],
            "not_checked": states[State.UNKNOWN],
            "findings": [as_dict(finding) for finding in findings],
        },
        indent=2,
    )

"""Findings of `agentmem doctor`: `python -m agentmem.process.checkup SERVICE MODULE [FLAGS]` writes lines of JSON.

A check's name is written before it runs, because it may hang or crash.
"""

import importlib
import json
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from functools import partial
from typing import Any

import click
from pydantic import TypeAdapter

from agentmem.errors import AgentmemError
from agentmem.process.macos import mend_import
from agentmem.process.settings import SettingsError, load


class State(StrEnum):
    """A warning costs speed, room or comfort; a problem prevents or endangers operation."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"
    UNKNOWN = "not checked"


@dataclass(frozen=True)
class Finding:
    """Unless OK, `advice` says what to do; `facts` are measured values by name and unit."""

    state: State
    found: str
    advice: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)
    check: str = ""


ok, warning, problem, unknown = (partial(Finding, state) for state in State)

Findings = Iterable[Finding]
Checks = Mapping[str, Callable[[], Findings]]
_LINE: TypeAdapter[str | Finding] = TypeAdapter(str | Finding)


def main(service: str, module: str, *arguments: str) -> None:
    def settings() -> Findings:
        checked = importlib.import_module(module)
        checks.extend(checked.checks(load(checked.SETTINGS, arguments)).items())
        return ()

    checks = [(f"{service} settings", settings)]
    for name, check in checks:
        print(json.dumps(name), flush=True)  # noqa: T201
        for finding in findings(check):
            print(json.dumps(asdict(replace(finding, check=name))), flush=True)  # noqa: T201


def findings(check: Callable[[], Findings]) -> Findings:
    """Yield a check's findings, or its error as one."""
    try:
        yield from check()
    except ImportError as error:  # no MLX, or a build without a GPU's libraries
        yield problem(f"a library cannot be imported: {error}", mend_import(error))
    except OSError as error:
        yield problem(str(error), "look at that file or device, and at its permissions")
    except (AgentmemError, SettingsError, click.ClickException) as error:
        yield refused(error)
    except Exception as error:  # noqa: BLE001 - a bug in one check must not hide the others
        failed = f"the check itself failed: {type(error).__name__}: {error}"
        yield unknown(failed, "this is a mistake in Agentmem; report it with this line")


def refused(error: Exception) -> Finding:
    """Return an error as a problem; what to do follows a semicolon."""
    text = str(error)
    found, _, advice = (text, "", "") if "\n" in text else text.partition("; ")  # several mistakes have a line each
    return problem(found, advice or "mend what it names")


def parse(lines: bytes) -> tuple[str, list[Finding]]:
    """Return the last check that began, and all findings; other lines are a library's."""
    began, found = "", list[Finding]()
    for line in lines.splitlines():
        with suppress(ValueError):
            match _LINE.validate_json(line):
                case Finding() as finding:
                    found.append(finding)
                case name:
                    began = name
    return began, found


if __name__ == "__main__":
    # The module that checks import; this one is a copy.
    importlib.import_module("agentmem.process.checkup").main(*sys.argv[1:])
    os._exit(0)  # threads that wait for a device end with the process

"""Findings of `agentmem doctor`: `python -m agentmem.process.checkup SERVICE MODULE [FLAGS]` writes lines of JSON.

The module has SETTINGS, their class, and `checks`. The name of a check is written as it begins: one may hang or crash.
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
from agentmem.extras import INSTALL
from agentmem.process.settings import SettingsError, load


class State(StrEnum):
    """How bad a finding is. A warning costs speed, room or comfort; a problem prevents or endangers operation."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"
    UNKNOWN = "not checked"


@dataclass(frozen=True)
class Finding:
    """The result of a check; unless OK, what to do; measured values by name and unit. `main` sets `check`."""

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
    """Print the findings of a module's checks with the settings that flags, environment and TOML give."""

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
    """Yield what a check finds, and the error that it raises as a finding."""
    try:
        yield from check()
    except ImportError as error:  # MLX is not there, or its build misses a GPU's libraries
        yield problem(f"a library cannot be imported: {error}", INSTALL)
    except OSError as error:
        yield problem(str(error), "look at that file or device, and at its permissions")
    except (AgentmemError, SettingsError, click.ClickException) as error:
        yield refused(error)
    except Exception as error:  # noqa: BLE001 - a bug in one check must not hide the others
        failed = f"the check itself failed: {type(error).__name__}: {error}"
        yield unknown(failed, "this is a mistake in Agentmem; report it with this line")


def refused(error: Exception) -> Finding:
    """Return the problem of an error whose message says what is wrong and, as a rule, after a semicolon what to do."""
    text = str(error)
    found, _, advice = (text, "", "") if "\n" in text else text.partition("; ")  # a line for each of several mistakes
    return problem(found, advice or "mend what it names")


def parse(lines: bytes) -> tuple[str, list[Finding]]:
    """Return the last check that began, and all findings, of what `main` wrote; other lines are a library's."""
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
    # The module that the checks import; this one is a copy.
    importlib.import_module("agentmem.process.checkup").main(*sys.argv[1:])
    os._exit(0)  # threads that wait for a device end with the process

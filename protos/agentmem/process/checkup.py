"""Findings of `agentmem doctor`, and the JSON lines in which each service's `python -m PACKAGE.doctor` writes them.

The name of a check is written as it begins, so the reader knows which one hangs or crashes.
"""

import json
import os
import socket
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from functools import partial
from pathlib import Path
from shlex import quote
from typing import Any, TypeVar

from pydantic import TypeAdapter

from agentmem.errors import AgentmemError
from agentmem.layout import ForeignDirectory
from agentmem.process.settings import ServiceSettings, SettingsError, load
from agentmem.process.sockets import parse_address

_Settings = TypeVar("_Settings", bound=ServiceSettings)


class State(StrEnum):
    """How bad a finding is. A warning costs speed, room or comfort; a problem prevents or endangers operation."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"
    UNKNOWN = "not checked"


@dataclass(frozen=True)
class Finding:
    """What a check found; unless it is OK, what to do; measured values by name and unit. `run` sets `check`."""

    state: State
    found: str
    advice: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)
    check: str = ""

    def __post_init__(self) -> None:
        if self.state is not State.OK and not self.advice:
            raise ValueError(f"{self.found}: a finding that is not ok says what to do")


ok, warning, problem, unknown = (partial(Finding, state) for state in State)

Findings = Iterable[Finding]
Checks = Mapping[str, Callable[[], Findings]]
"""Checks by name, in their order. What a check raises of OSError and of our own errors is a problem that it found."""

_LINE: TypeAdapter[str | Finding] = TypeAdapter(str | Finding)


def main(kind: type[_Settings], service: str, *groups: Callable[[_Settings], Checks]) -> None:
    """Run the checks of a service with its settings from flags, environment and TOML, or say what is wrong with those.

    A group of checks that finds a problem is the last.
    """
    os.umask(0o077)
    try:
        settings = load(kind)
    except SettingsError as error:
        wrong = refused(error)
        run({f"{service} settings": lambda: [wrong]})
    else:
        all(run(checks(settings)) for checks in groups)


def run(checks: Checks, write: Callable[[str], object] = lambda line: print(line, flush=True)) -> bool:  # noqa: T201
    """Run the checks in order, even where one fails, and write their lines. Return whether none found a problem."""
    well = True
    for name, check in checks.items():
        write(json.dumps(name))
        for finding in findings(check):
            well = well and finding.state is not State.PROBLEM
            write(json.dumps(asdict(replace(finding, check=name))))
    return well


def findings(check: Callable[[], Findings]) -> Findings:
    """Yield what a check finds, and the error that it raises as a finding."""
    try:
        yield from check()
    except OSError as error:
        about = f"{error.filename}: {error.strerror}" if error.filename else str(error)
        yield problem(about, "look at that file or device, and at its permissions")
    except (AgentmemError, ForeignDirectory, SettingsError) as error:
        yield refused(error)
    except Exception as error:  # noqa: BLE001 - a bug in one check must not hide the others
        failed = f"the check itself failed: {type(error).__name__}: {error}"
        yield unknown(failed, "this is a mistake in Agentmem; report it with this line")


def refused(error: Exception) -> Finding:
    """Return the problem of an error whose message says what is wrong and, as a rule, after a semicolon what to do."""
    text = str(error)
    found, _, advice = (text, "", "") if "\n" in text else text.partition("; ")  # a line for each of several mistakes
    return problem(found, advice or "mend what it names")


def parse(line: bytes | str) -> str | Finding:
    """Return the name of the check that begins, or the finding, of a line of `run`. Raise ValueError for others."""
    return _LINE.validate_json(line)


def listens(target: str) -> bool:
    """Return whether "unix:PATH" or "host:port" accepts connections, or is too busy to within a second."""
    try:
        if target.startswith("unix:"):
            with socket.socket(socket.AF_UNIX) as probe:
                probe.settimeout(1.0)
                probe.connect(target.removeprefix("unix:"))
        else:
            socket.create_connection(parse_address(target), 1.0).close()
    except (TimeoutError, BlockingIOError):
        return True
    except OSError:  # includes a path that is too long
        return False
    return True


def usable_directory(path: Path, flag: str) -> Finding | None:
    """Return why this user cannot use a directory, or that it will be made; None where it is there and this user's."""
    another = f"choose another {flag}"
    if (parent := existing(path)) != path:
        if parent.is_dir() and os.access(parent, os.W_OK | os.X_OK):
            return ok(f"{path} will be made at the first start")
        return problem(f"{path} cannot be made in {parent}", f"{another}, or let this user write there")
    if not path.is_dir():
        return problem(f"{path} is not a directory", another)
    if (owner := path.stat().st_uid) != (user := os.geteuid()):
        return problem(f"{path} is user {owner}'s, and this is user {user}", f"run as that user, or {another}")
    if not os.access(path, os.R_OK | os.W_OK | os.X_OK):
        return problem(f"{path} cannot be read and written", f"chmod 700 {quote(str(path))}")
    return None


def existing(path: Path) -> Path:
    """Return `path`, or its nearest parent that exists. Raise OSError where that cannot be determined."""
    return next(place for place in (path, *path.parents) if place.exists())

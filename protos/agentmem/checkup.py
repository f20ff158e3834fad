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

from agentmem.settings import ServiceSettings, SettingsError, load

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
"""Checks by name, in their order. A check may raise OSError."""


def run(checks: Checks, write: Callable[[str], object] = lambda line: print(line, flush=True)) -> bool:  # noqa: T201
    """Run the checks in order, even where one fails, and write their lines. Return whether none found a problem."""
    well = True
    for name, check in checks.items():
        write(json.dumps({"begun": name}))
        for finding in _findings(check):
            well = well and finding.state is not State.PROBLEM
            write(json.dumps(asdict(replace(finding, check=name))))
    return well


def _findings(check: Callable[[], Findings]) -> Findings:
    try:
        yield from check()
    except OSError as error:
        about = f"{error.filename}: {error.strerror}" if error.filename else str(error)
        yield problem(about, "look at that file or device, and at its permissions")
    except Exception as error:  # noqa: BLE001 - a bug in one check must not hide the others
        failed = f"the check itself failed: {type(error).__name__}: {error}"
        yield unknown(failed, "this is a mistake in Agentmem; report it with this line")


def parse(line: str) -> str | Finding:
    """Return the name of the check that begins, or the finding, of a line of `run`. Raise ValueError for others."""
    match json.loads(line):
        case {"begun": str(check)}:
            return check
        case {"check": str(check), "state": str(state), "found": str(found), "advice": str(advice), "facts": facts}:
            return Finding(State(state), found, advice, facts, check)
    raise ValueError(f"{line!r} is no finding")


def settings_of(kind: type[_Settings], service: str) -> _Settings | None:
    """Return the settings of a service from flags, environment and TOML; where they are wrong, write that finding."""
    os.umask(0o077)
    try:
        return load(kind)
    except SettingsError as error:
        wrong = problem(str(error), "mend the setting that it names: a flag, AGENTMEM_… or the TOML")
        run({f"{service} settings": lambda: [wrong]})
        return None


def listens(target: str) -> bool:
    """Return whether "unix:PATH" accepts connections, or is too busy to within a second."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(target.removeprefix("unix:"))
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

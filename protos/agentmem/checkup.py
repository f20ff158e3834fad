"""What `agentmem doctor` finds. Each process's package looks at its own things, and says line by line what it found.

A line is a JSON object: the name of a check that begins, or a finding. So who reads them knows by name which check
hangs or has crashed, and it costs no other's findings.
"""

import json
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType
from typing import Final

Fact = int | float | str | bool
"""A measured value, for machines: bytes, seconds, names."""


class State(StrEnum):
    """How bad it is. A warning costs speed, room or comfort; a problem keeps Agentmem from working, or is unsafe."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"
    UNKNOWN = "not checked"


@dataclass(frozen=True)
class Finding:
    """What a check found, and where it is not OK, what to do. `facts` are for machines, their names with units.

    Raises ValueError where nothing is said of what to do.
    """

    check: str
    state: State
    found: str
    advice: str = ""
    facts: Mapping[str, Fact] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.state is not State.OK and not self.advice:
            raise ValueError(f"{self.check}: a finding that is not ok says what to do")


_NONE: Final[Mapping[str, Fact]] = MappingProxyType({})

Findings = Iterable[Finding]
Check = tuple[str, Callable[[], Findings]]
"""A name, and what finds something; it may raise OSError where the machine fails under it."""


@dataclass(frozen=True)
class Begun:
    """The check of this name has begun."""

    check: str


def ok(check: str, found: str, advice: str = "", facts: Mapping[str, Fact] = _NONE) -> Finding:
    """All is well; `advice` is what could be even better."""
    return Finding(check, State.OK, found, advice, facts)


def warning(check: str, found: str, advice: str, facts: Mapping[str, Fact] = _NONE) -> Finding:
    """It works, and could be better."""
    return Finding(check, State.WARNING, found, advice, facts)


def problem(check: str, found: str, advice: str, facts: Mapping[str, Fact] = _NONE) -> Finding:
    """It does not work, or is not safe."""
    return Finding(check, State.PROBLEM, found, advice, facts)


def unknown(check: str, found: str, advice: str, facts: Mapping[str, Fact] = _NONE) -> Finding:
    """It could not be found out."""
    return Finding(check, State.UNKNOWN, found, advice, facts)


def tell(checks: Sequence[Check], write: Callable[[str], object]) -> None:
    """Run the checks in order, and give their lines to `write`. One that fails costs no other's findings."""
    for name, check in checks:
        write(json.dumps({"begun": name}))
        try:
            for finding in check():
                write(_encoded(finding))
        except OSError as error:
            about = f"{error.filename}: {error.strerror}" if error.filename else str(error)
            write(_encoded(problem(name, about, "look at that file or device, and at who may use it")))
        except Exception as error:  # noqa: BLE001 - the rim: a bug in one check, told as such
            told = f"the check itself failed: {type(error).__name__}: {error}"
            write(_encoded(unknown(name, told, "this is a mistake in Agentmem; report it with this line")))


def decode(line: str) -> Begun | Finding:
    """A line of `tell`. Raises ValueError for any other."""
    match json.loads(line):
        case {"begun": str(check)}:
            return Begun(check)
        case {"check": str(check), "state": str(state), "found": str(found), "advice": str(advice), "facts": facts}:
            return Finding(check, State(state), found, advice, dict(facts))
    raise ValueError(f"{line!r} is no finding")


def as_dict(finding: Finding) -> dict[str, object]:
    """The finding as JSON has it."""
    return {
        "check": finding.check,
        "state": finding.state.value,
        "found": finding.found,
        "advice": finding.advice,
        "facts": dict(finding.facts),
    }


_CONNECT_SECONDS: Final = 1.0


def listens(target: str) -> bool:
    """Whether somebody accepts connections at "unix:PATH", or is too busy to within a second."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(_CONNECT_SECONDS)
        try:
            probe.connect(target.removeprefix("unix:"))
        except (TimeoutError, BlockingIOError):
            return True
        except OSError:  # also a path that is too long, which nobody can have
            return False
    return True


def existing(path: Path) -> Path:
    """`path`, or its nearest parent that is there. Raises OSError where that cannot be seen."""
    return next(place for place in (path, *path.parents) if place.exists())


def _encoded(finding: Finding) -> str:
    return json.dumps(as_dict(finding))

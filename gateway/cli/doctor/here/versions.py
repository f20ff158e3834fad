"""Python and libraries against what the installed Agentmem asks for, and against the lock where there is one."""

import platform
import tomllib
from collections.abc import Iterable, Mapping
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from agentmem.checkup import Finding, Findings, ok, problem, warning

_NAME = "agentmem"
_LOCK = Path(__file__).parents[4] / "uv.lock"
_BACKENDS = frozenset({"cpu", "cuda13"})
"""Extras that are builds of MLX, which the worker's half looks at."""

_MOST = 6


def versions() -> Findings:
    """Whether Python and all libraries are as they are asked for, and as they were tested."""
    name, installed = "versions", _installed()
    try:
        asked_for = [Requirement(text) for text in metadata.requires(_NAME) or ()]
        python = metadata.metadata(_NAME)["Requires-Python"]
    except metadata.PackageNotFoundError:
        yield warning(
            name, "agentmem is not installed, so what it asks for is not known", "make setup, or pip install it"
        )
        return
    wrong = unmet(asked_for, installed, "")
    if not Requirement(f"python{python}").specifier.contains(platform.python_version(), prereleases=True):
        wrong = [f"Python {platform.python_version()} is not {python}", *wrong]
    told = f"agentmem {metadata.version(_NAME)}, Python {platform.python_version()}"
    if wrong:
        yield problem(name, f"{told}: {_some(wrong)}", "make setup, or pip install --upgrade agentmem")
        return
    try:
        lock = tomllib.loads(_LOCK.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        yield ok(name, f"{told}, and all libraries are as they are asked for")
        return
    if others := unlike(lock, installed):
        yield warning(name, f"{told}; other versions than were tested: {_some(others)}", "make setup")
    else:
        yield ok(name, f"{told}, and all libraries are as in uv.lock")


def extras() -> Findings:
    """Which of the optional parts are there."""
    try:
        asked_for = [Requirement(text) for text in metadata.requires(_NAME) or ()]
        names = set(metadata.metadata(_NAME).get_all("Provides-Extra") or ()) - _BACKENDS
    except metadata.PackageNotFoundError:
        return []
    return [_extra(name, unmet(asked_for, _installed(), name)) for name in sorted(names)]


def unmet(asked_for: Iterable[Requirement], installed: Mapping[str, str], extra: str) -> list[str]:
    """What is missing or of another version, in words, of what `extra` asks for; "" is what everybody needs."""
    wrong = []
    for each in asked_for:
        if not _applies(each, extra):
            continue
        version = installed.get(canonicalize_name(each.name))
        if version is None:
            wrong.append(f"{each.name} is missing")
        elif not each.specifier.contains(version, prereleases=True):
            wrong.append(f"{each.name} {version} is not {each.specifier}")
    return wrong


def unlike(lock: Mapping[str, object], installed: Mapping[str, str]) -> list[str]:
    """Installed packages that the lock has in another version. It may have several of one, for several systems."""
    locked: dict[str, set[str]] = {}
    packages = lock.get("package")
    for package in packages if isinstance(packages, list) else ():
        if "version" in package and package["name"] != _NAME:
            locked.setdefault(canonicalize_name(package["name"]), set()).add(str(package["version"]))
    return [
        f"{name} {installed[name]} instead of {' or '.join(sorted(found))}"
        for name, found in sorted(locked.items())
        if name in installed and installed[name] not in found
    ]


def _extra(name: str, wrong: list[str]) -> Finding:
    if wrong:
        return ok("extras", f"{name} is not there: {_some(wrong)}", f"pip install 'agentmem[{name}]', if you want it")
    return ok("extras", f"{name} is there")


def _applies(requirement: Requirement, extra: str) -> bool:
    """Whether `extra` brings the requirement, and where it is not "", only that does."""
    if requirement.marker is None:
        return not extra
    return requirement.marker.evaluate({"extra": extra}) and not (extra and requirement.marker.evaluate({"extra": ""}))


def _installed() -> dict[str, str]:
    return {canonicalize_name(found.metadata["Name"]): found.version for found in metadata.distributions()}


def _some(words: list[str]) -> str:
    more = f" and {len(words) - _MOST} more" if len(words) > _MOST else ""
    return ", ".join(words[:_MOST]) + more

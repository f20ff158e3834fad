from importlib import metadata

import pytest

from agentmem.process.checkup import State
from gateway.cli.doctor import checks
from gateway.cli.doctor.checks import unlike, unmet

ASKED_FOR = ["Some_Thing>=2,<3", "other>=1", "nowhere>=1; sys_platform == 'none'", "plot>=1; extra == 'report'"]


@pytest.mark.parametrize(
    ("installed", "extra", "wrong"),
    [
        ({"some-thing": "2.5", "other": "1.0"}, "", []),
        ({"some-thing": "2.5rc1", "other": "1.0"}, "", []),
        ({"some-thing": "3.0", "other": "1.0"}, "", ["Some_Thing 3.0 is not <3,>=2"]),
        ({"some-thing": "2.0"}, "", ["other is missing"]),
        ({}, "report", ["plot is missing"]),
        ({"plot": "1.1"}, "report", []),
    ],
)
def test_what_is_asked_for(
    installed: dict[str, str], extra: str, wrong: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metadata, "requires", lambda _: ASKED_FOR)
    monkeypatch.setattr(checks, "_installed", lambda: installed)
    assert unmet(extra) == wrong


def test_what_is_locked() -> None:
    lock = {"package": [
        {"name": "a", "version": "1"}, {"name": "a", "version": "2"}, {"name": "b", "version": "1"},
        {"name": "c", "version": "1"}, {"name": "agentmem", "version": "0"}, {"name": "local"},
    ]}  # fmt: skip
    assert unlike(lock, {"a": "2", "b": "1", "agentmem": "1", "other": "9"}) == []
    assert unlike(lock, {"a": "3", "b": "2"}) == ["a 3 instead of 1 or 2", "b 2 instead of 1"]
    assert unlike({}, {"a": "1"}) == []


def test_this_installation(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [each.state for each in checks.versions()] != [State.PROBLEM]
    asked_for = metadata.requires("agentmem") or []
    monkeypatch.setattr(metadata, "requires", lambda _: [*asked_for, "click>=99", "no-such-library"])
    (found,) = checks.versions()
    assert found.state is State.PROBLEM and "no-such-library is missing" in found.found and "click" in found.found


def test_extras_are_named_and_builds_of_mlx_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    class Metadata:
        def get_all(self, _: str) -> list[str]:
            return ["cpu", "cuda13", "report", "tea"]

    monkeypatch.setattr(metadata, "metadata", lambda _: Metadata())
    monkeypatch.setattr(metadata, "requires", lambda _: ["click; extra == 'report'", "kettle; extra == 'tea'"])
    monkeypatch.setattr(checks, "_installed", lambda: {"click": "8.2"})
    there, absent = checks.extras()
    assert there.found == "report is there"
    assert absent.state is State.OK and "tea is not there" in absent.found and "agentmem[tea]" in absent.advice

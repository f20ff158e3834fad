import json
import socket
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentmem.errors import FailedPrecondition
from agentmem.process.checkup import (
    Finding,
    Findings,
    State,
    existing,
    findings,
    listens,
    ok,
    parse,
    problem,
    refused,
    run,
    unknown,
    usable_directory,
    warning,
)

facts = st.dictionaries(st.text(), st.integers() | st.floats(allow_nan=False) | st.text() | st.booleans())


@given(st.text(), st.sampled_from(State), st.text(), st.text(min_size=1), facts)
def test_a_finding_is_one_line_and_comes_back(check: str, state: State, found: str, advice: str, known: dict) -> None:
    finding = Finding(state, found, advice, known)
    lines: list[str] = []
    assert run({check: lambda: [finding]}, lines.append) == (state is not State.PROBLEM)
    assert all("\n" not in line for line in lines)
    assert [parse(line) for line in lines] == [check, replace(finding, check=check)]


def test_the_kinds_of_findings() -> None:
    made = [ok("a"), warning("b", "x"), problem("c", "y", {"port": 1}), unknown("d", "z")]
    assert [each.state for each in made] == list(State)
    assert made[2].facts == {"port": 1}


@pytest.mark.parametrize("state", [State.WARNING, State.PROBLEM, State.UNKNOWN])
def test_what_is_not_ok_says_what_to_do(state: State) -> None:
    with pytest.raises(ValueError, match="says what to do"):
        Finding(state, "bad")


@pytest.mark.parametrize(
    "line", ["", "hello", "[]", "{}", '{"check": "x", "state": "fine", "found": "", "advice": "", "facts": {}}']
)
def test_other_lines_are_refused(line: str) -> None:
    with pytest.raises(ValueError):
        parse(line)


def test_a_check_that_fails_costs_no_others() -> None:
    def full() -> Findings:
        yield ok("before")
        raise OSError(28, "No space left on device", "/x")

    def wrong() -> Findings:
        raise KeyError("y")

    lines: list[str] = []
    assert not run({"disk": full, "bug": wrong, "last": lambda: [ok("fine")]}, lines.append)
    found = [said for said in map(parse, lines) if isinstance(said, Finding)]
    assert [(each.check, each.state) for each in found] == [
        ("disk", State.OK), ("disk", State.PROBLEM), ("bug", State.UNKNOWN), ("last", State.OK)
    ]  # fmt: skip
    assert found[1].found == "/x: No space left on device"
    assert "KeyError" in found[2].found


def test_errors_of_ours_say_what_to_do() -> None:
    def missing() -> Findings:
        raise FailedPrecondition("it is not there; fetch it")

    assert list(findings(missing)) == [problem("it is not there", "fetch it")]
    assert refused(ValueError("odd")).advice == "mend what it names"
    several = refused(ValueError("--a: unknown; did you mean --b?\n--c: unknown"))
    assert several.found.endswith("--c: unknown") and several.advice == "mend what it names"


def test_json_has_all_of_it() -> None:
    said = asdict(replace(problem("taken", "choose another", {"port": 80}), check="ports"))
    assert json.loads(json.dumps(said)) == {
        "check": "ports", "state": "problem", "found": "taken", "advice": "choose another", "facts": {"port": 80}
    }  # fmt: skip


def test_who_listens(tmp_path: Path) -> None:
    target = f"unix:{tmp_path}/s"
    assert not listens(target)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(f"{tmp_path}/s")
        assert not listens(target)
        server.listen()
        assert listens(target)
    assert not listens(target), "the socket of a server that is gone"
    assert not listens(f"unix:/{'x' * 200}")


def test_the_nearest_parent_that_is_there(tmp_path: Path) -> None:
    assert existing(tmp_path / "a" / "b") == existing(tmp_path) == tmp_path


def test_a_directory_that_can_be_used(tmp_path: Path) -> None:
    assert usable_directory(tmp_path, "--x") is None
    absent = usable_directory(tmp_path / "a" / "b", "--x")
    assert absent is not None and absent.state is State.OK and "will be made" in absent.found
    (tmp_path / "file").touch()
    for path in (tmp_path / "file", tmp_path / "file" / "a"):
        refused = usable_directory(path, "--x")
        assert refused is not None and refused.state is State.PROBLEM and "--x" in refused.advice

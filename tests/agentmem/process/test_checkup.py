import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentmem.errors import FailedPrecondition
from agentmem.process import checkup
from agentmem.process.checkup import Finding, Findings, State, ok, parse, problem, refused
from tests.gateway.cli import checked

facts = st.dictionaries(st.text(), st.integers() | st.floats(allow_nan=False) | st.text() | st.booleans())


@given(st.text(), st.sampled_from(State), st.text(), st.text(), facts)
def test_finding_comes_back(check: str, state: State, found: str, advice: str, known: dict) -> None:
    said = {"state": state, "found": found, "advice": advice, "facts": known, "check": check}
    lines = b"\n".join([b"", b"hello", b"[]", b"{}", json.dumps(check).encode(), json.dumps(said).encode()])
    assert parse(lines) == (check, [Finding(state, found, advice, known, check)])


def test_failed_check_costs_no_others(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def full() -> Findings:
        yield ok("before")
        raise OSError(28, "No space left on device", "/x")

    made = {"disk": full, "bug": lambda: [{}["y"]], "last": lambda: [ok("fine")]}
    monkeypatch.setattr(checked, "checks", lambda _: made)
    checkup.main("it", checked.__name__)
    last, found = parse(capsys.readouterr().out.encode())
    assert last == "last"
    assert [(each.check, each.state) for each in found] == [
        ("disk", State.OK), ("disk", State.PROBLEM), ("bug", State.UNKNOWN), ("last", State.OK)
    ]  # fmt: skip
    assert "No space left on device: '/x'" in found[1].found and "KeyError" in found[2].found


@pytest.mark.parametrize(
    ("module", "arguments", "said", "advice"),
    [
        ("no_such_module", [], "No module named 'no_such_module'", "install MLX"),
        (checked.__name__, ["--grace=never"], "grace", "mend"),
    ],
)
def test_checks_that_cannot_begin(
    module: str, arguments: list[str], said: str, advice: str, capsys: pytest.CaptureFixture[str]
) -> None:
    checkup.main("it", module, *arguments)
    _, (found,) = parse(capsys.readouterr().out.encode())
    assert (found.check, found.state) == ("it settings", State.PROBLEM)
    assert said in found.found and advice in found.advice


def test_refusal_of_several_lines_is_not_cut() -> None:
    assert refused(FailedPrecondition("it is not there; fetch it")) == problem("it is not there", "fetch it")
    several = refused(ValueError("--a: unknown; did you mean --b?\n--c: unknown"))
    assert several.found.endswith("--c: unknown") and several.advice == "mend what it names"

import io
import json
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from agentmem.process.checkup import Finding, State, ok, problem, unknown, warning
from gateway.cli.doctor.command import combined, print_report, status, to_json

GOOD = replace(ok("fine"), check="a")
POOR = replace(warning("slow", "hurry"), check="b")
BAD = replace(problem("taken \x1b[31m[red]", "choose another"), check="ports")
BLIND = replace(unknown("hung", "look"), check="c")


def test_the_exit_status() -> None:
    assert status([]) == status([GOOD, POOR]) == 0
    assert status([GOOD, BAD, BLIND]) == status([BAD]) == 1
    assert status([GOOD, POOR, BLIND]) == 2


@given(st.lists(st.sampled_from([GOOD, POOR, BAD, BLIND])))
def test_json_agrees_with_the_findings(findings: list[Finding]) -> None:
    told = json.loads(to_json(findings))
    assert told["well"] == (status(findings) == 0)
    assert [each["check"] for each in told["findings"]] == [each.check for each in findings]
    assert told["problems"] == findings.count(BAD) and told["not_checked"] == findings.count(BLIND)


def test_the_table_has_all_of_it_and_steers_no_terminal() -> None:
    out = io.StringIO()
    print_report(Console(file=out, width=120, markup=False, highlight=False), [GOOD, POOR, BAD])
    told = out.getvalue()
    assert "\x1b" not in told and r"taken \x1b[31m[red]" in told
    assert all(word in told for word in ("ok", "warning", "problem", "hurry", "choose another"))
    assert told.endswith("1 ok, 1 warning, 1 problem\n")


def test_a_model_whose_agents_the_store_has_no_room_for() -> None:
    store = ok("", facts={"limit_bytes": 1000})
    small, large = (replace(ok("", facts={"agent_bytes": size}), check=f"model {size}") for size in (1000, 1001))
    (found,) = combined([store, small, large])
    assert found.check == "model 1001" and found.state is State.PROBLEM and "WARM_BYTES" in found.advice
    assert list(combined([small, large])) == list(combined([store, small])) == []

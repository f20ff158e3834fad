import io
import json

from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from agentmem.checkup import Finding, ok, problem, unknown, warning
from gateway.cli.doctor.report import as_json, print_report, status, summary

GOOD = ok("a", "fine")
POOR = warning("b", "slow", "hurry")
BAD = problem("ports", "taken \x1b[31m[red]", "choose another")
BLIND = unknown("c", "hung", "look")


def test_the_exit_status() -> None:
    assert status([]) == status([GOOD, POOR]) == 0
    assert status([GOOD, BAD, BLIND]) == status([BAD]) == 1
    assert status([GOOD, POOR, BLIND]) == 2


@given(st.lists(st.sampled_from([GOOD, POOR, BAD, BLIND])))
def test_json_and_summary_agree_with_the_findings(findings: list[Finding]) -> None:
    told = json.loads(as_json(findings))
    assert told["well"] == (status(findings) == 0)
    assert [each["check"] for each in told["findings"]] == [each.check for each in findings]
    assert told["problems"] == findings.count(BAD) and told["not_checked"] == findings.count(BLIND)
    assert f"{findings.count(BAD)} problem" in summary(findings)


def test_the_table_has_all_of_it_and_steers_no_terminal() -> None:
    out = io.StringIO()
    print_report(Console(file=out, width=120, markup=False, highlight=False), [GOOD, POOR, BAD])
    told = out.getvalue()
    assert "\x1b" not in told and r"taken \x1b[31m[red]" in told
    assert all(word in told for word in ("ok", "warning", "problem", "hurry", "choose another"))
    assert told.endswith("1 ok, 1 warning, 1 problem\n")

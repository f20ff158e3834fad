"""Tables and claims."""

import pytest

from benchmarks.tables import Claim, Table, claims_table, interval, percent


def test_markdown_has_a_line_for_each_row_and_no_stray_columns() -> None:
    table = Table("Title", ("what", "ms"), [("a|b", "1"), ("c", "2")], "A note.")
    lines = table.markdown().splitlines()
    assert lines == ["**Title**", "", "| what | ms |", "|---|---:|", "| a\\|b | 1 |", "| c | 2 |", "", "A note."]


@pytest.mark.parametrize(
    ("at_most", "value", "met"), [(True, 1.5, True), (True, 1.51, False), (False, 1.5, True), (False, 1.49, False)]
)
def test_a_claim_is_met_up_to_its_limit(at_most: bool, value: float, met: bool) -> None:
    claim = Claim("warm over raw", value, 1.5, at_most)
    assert claim.met is met
    assert claims_table([claim]).rows[0][3] == ("met" if met else "**missed**")


def test_intervals_are_shown_with_their_ends() -> None:
    found = {"value": 1.0431, "low": 1.039, "high": 1.047}
    assert interval(found, ".3g") == "1.04 (1.04 to 1.05)"
    assert percent(found) == "104.3 % (103.9 to 104.7)"
    assert percent(found, "+.2f", minus=1.0) == "+4.31 % (+3.90 to +4.70)"

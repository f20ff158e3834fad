"""The tests' own reading of PromQL."""

import pytest

from tests.promql import arms, family, filled_in, metric_names, with_bool


@pytest.mark.parametrize(
    ("expression", "names"),
    [
        ('sum by (le, tier) (rate(a_bucket{b=~"c|d"}[5m]))', {"a_bucket"}),
        ("histogram_quantile(0.95, sum(rate(a_bucket[$__rate_interval]))) >= 0", {"a_bucket"}),
        ("level:a:rate5m / on (x) group_left () (b > bool 1e3)", {"level:a:rate5m", "b"}),
        ('label_replace(a, "to", "$1", "from", "(.*)") unless on (i) last_over_time(b[10m])', {"a", "b"}),
        ("a and b or c unless d", {"a", "b", "c", "d"}),
        ("vector(0) > Inf", set()),
    ],
)
def test_names_of_metrics(expression: str, names: set[str]) -> None:
    assert metric_names(expression) == names


def test_a_family_has_no_suffix_of_its_type() -> None:
    assert [family(name) for name in ("a_total", "a_bucket", "a_sum", "a_count", "a_bytes")] == ["a"] * 4 + ["a_bytes"]


def test_comparisons_become_bool_and_labels_do_not() -> None:
    assert with_bool('a{b!="c",d=~"e"} == 0 and b >= 1') == 'a{b!="c",d=~"e"} == bool 0 and b >= bool 1'


def test_arms_are_those_of_an_or_on_its_own_line() -> None:
    assert arms("a == 0\nor\nb or c\n") == ["a == 0", "b or c"]


def test_variables_as_grafana_fills_them_in() -> None:
    panel = 'rate(a{i=~"$instance",m=~"$model"}[$__rate_interval])'
    chosen = {"instance": ["local"], "model": ["org/a.b", "c"]}
    assert filled_in(panel, chosen, {"__rate_interval": "4s"}) == (r'rate(a{i=~"local",m=~"(org/a\\.b|c)"}[4s])')
    with pytest.raises(AssertionError, match="no dashboard has"):
        filled_in("a[$__interval]", chosen, {})

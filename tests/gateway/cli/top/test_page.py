import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.cli.top.page import Page, PageError

TEXT = """\
# HELP agentmem_prefix_cache_hits_total Prompt tokens whose KV was reused.
# TYPE agentmem_prefix_cache_hits_total counter
agentmem_prefix_cache_hits_total{model_id="a",tier="hot"} 10
agentmem_prefix_cache_hits_total{model_id="a",tier="warm"} 4
agentmem_prefix_cache_hits_total{model_id="b \\"c\\"",tier="hot"} 1
# TYPE agentmem_pool_blocks gauge
agentmem_pool_blocks{state="free"} NaN
agentmem_pool_blocks{state="used"} 3
# TYPE agentmem_inter_token_latency_seconds histogram
agentmem_inter_token_latency_seconds_bucket{le="1.0"} 2
agentmem_inter_token_latency_seconds_bucket{le="+Inf"} 2
agentmem_inter_token_latency_seconds_sum 1.5
agentmem_inter_token_latency_seconds_count 2
"""
HITS = "agentmem_prefix_cache_hits_total"


def test_series_are_found_by_some_of_their_labels_and_added_up() -> None:
    page = Page.parse(TEXT, 7.0)
    assert page.at == 7.0
    assert page.total(HITS) == 15
    assert page.total(HITS, model_id="a") == 14
    assert page.total(HITS, model_id="a", tier="warm") == 4
    assert page.total(HITS, model_id="z") is None
    assert page.by("tier", HITS) == {"hot": 11, "warm": 4}
    assert page.by("tier", HITS, model_id='b "c"') == {"hot": 1}
    assert page.values_of("model_id", HITS) == ["a", 'b "c"']
    assert page.total("agentmem_pool_blocks") == 3  # what is no number is not there


def test_what_only_grows_is_told_apart_from_what_does_not() -> None:
    names = {name for name, _, _ in Page.parse(TEXT, 0).cumulative}
    assert names == {HITS, *(f"agentmem_inter_token_latency_seconds_{part}" for part in ("bucket", "count"))}


def test_what_no_figure_is_made_of_is_passed_over() -> None:
    assert Page.parse(TEXT, 0).total("agentmem_inter_token_latency_seconds_sum") is None


@pytest.mark.parametrize(
    "text",
    ["", "# only a comment\n", "<!DOCTYPE html>\n<html></html>\n", "{}", "a b c d e\n", '{"error": 1}', "x{ 1\n"],
)
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(PageError):
        Page.parse(text, 0)


@given(st.text())
def test_no_text_raises_anything_else(text: str) -> None:
    with contextlib.suppress(PageError):
        Page.parse(text, 0)


@given(st.data())
def test_nor_does_a_damaged_page(data: st.DataObject) -> None:
    begin = data.draw(st.integers(0, len(TEXT)))
    end = data.draw(st.integers(begin, len(TEXT)))
    damaged = TEXT[:begin] + data.draw(st.text(max_size=5)) + TEXT[end:]
    with contextlib.suppress(PageError):
        Page.parse(damaged, 0)

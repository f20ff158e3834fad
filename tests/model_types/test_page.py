"""The page of model types as text."""

import pytest

from tests.model_types import installed
from tests.model_types.page import BEGIN, END, Line, between, outdated, replaced, section, tables

WORKS = Line("llama", "4 full", token_bytes=1384, resumes="anywhere")
REFUSED = Line("olmo", refused="its code ends the process")
WRONG = Line("talkie", "4 full", faults=["it hangs", "and more"])
HEAD = f"# Title\n\n{BEGIN}\n\nold\n\n{END}\n\nmore"


def test_types_are_told_apart() -> None:
    works, refused, wrong = tables([WRONG, REFUSED, WORKS], {"mistral": "llama"})
    assert works.rows == [("`llama`, `mistral`", "4 full", "1,384", "–", "anywhere", "yes")]
    assert refused.rows == [("`olmo`", "–", "its code ends the process")]
    assert wrong.rows == [("`talkie`", "4 full", "it hangs; and more")]
    assert [table.title for table in tables([WORKS], {})] == ["1 types work"]


def test_only_what_is_between_the_marks_is_replaced() -> None:
    new = section([WORKS, REFUSED], {}, "1.2")
    page = replaced(HEAD, new)
    assert page == HEAD.replace("old", new)
    assert between(page) == new
    assert replaced(page, new) == page


def test_lines_that_differ() -> None:
    page = replaced(HEAD, section([WORKS, REFUSED], {}, "1.2"))
    assert outdated(page, section([WORKS, REFUSED], {}, "1.2")) == []
    found = outdated(page, section([WORKS, REFUSED, Line("new", faults=["unknown"])], {}, "1.2"))
    assert "+ | `new` | – | unknown |" in found
    assert "- mlx-lm 1.2 has 2 model types." in found


def test_a_page_without_marks() -> None:
    with pytest.raises(ValueError, match="census: begin"):
        replaced("# Title", "")


def test_types_of_the_installed_package() -> None:
    assert {"llama", "qwen3_next", "kimi_k25", "olmo"} <= set(installed.types())
    assert not {"base", "cache", "rope_utils", "switch_layers"} & set(installed.types())
    assert installed.aliases()["mistral"] == "llama"

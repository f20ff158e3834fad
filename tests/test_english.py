"""The lint of English: words that are refused, and limits by package."""

from pathlib import Path

import pytest

from tests import english


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Of all nodes, the leader.", ["begins with Of"]),
        ("`What` is said.", ["begins with `What"]),
        ("# What a comment may begin with", []),
        ("Return what comes behind the cut, anew.", ["behind", "anew"]),
        ("Offsets that a killed process left behind, behind a proxy.", []),
    ],
)
def test_refused_words(text: str, words: list[str]) -> None:
    assert list(english.refused(text)) == words


def test_limits_hold_for_packages_and_below(tmp_path: Path) -> None:
    file = tmp_path / "gateway/cli/keys.py"
    file.parent.mkdir(parents=True)
    file.write_text('"""Keys."""\nKEY = 1  # of a caller\n"""Whose it is."""\n')
    table, exceeded = english.check(tmp_path, {"gateway": {"words": 3, "refused": 1}})
    assert (table, exceeded) == (["2.33 words per line,   1 refused in gateway"], [])
    _, exceeded = english.check(tmp_path, {})
    assert [line.partition(": ")[0] for line in exceeded] == ["gateway/cli", "gateway/cli/keys.py:3"]

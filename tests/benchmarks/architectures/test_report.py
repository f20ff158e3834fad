"""What is said of architectures, from figures as they are written."""

import json
from typing import Any

from benchmarks.architectures.models import figures
from benchmarks.architectures.report import tables
from benchmarks.architectures.scores import DECODE, PREFILL, Answer, Sample, Sums


def sample(lost: bool = False) -> Sample:
    """A text with two answers. `lost`: they go wrong with quantized KV."""
    sums = dict.fromkeys((PREFILL, DECODE), Sums(100, 51.0, 50.0, 2.0))
    return Sample(512, sums, sums, [Answer(phase, plain=True, quantized=not lost) for phase in sums])


def written(four: list[Sample], **of_model: str) -> dict[str, Any]:
    model = {"by_bits": {"4": figures(four), "8": figures([sample()])}, **of_model}
    found: dict[str, Any] = json.loads(json.dumps({"models": {"llama (demo)": model}}))
    return found


def test_a_row_says_the_scheme_and_what_was_lost() -> None:
    [table] = tables(written([sample(), sample(lost=True)], scheme="rotated"))
    first, second = table.rows
    assert first[0] == "llama (demo), 4 bits, rotated"
    assert (first[1], first[4], first[-1]) == ("4", "2 / 0", "2.0e-02")
    assert second[0] == "llama (demo), 8 bits, rotated"

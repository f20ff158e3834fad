"""Figures of made-up samples, and what is said of them, as they are written."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest

from benchmarks.quality.figures import AskedChat, Measured, ReadPiece, Stored, figures
from benchmarks.quality.llama_cpp import LLAMA_BASE, LLAMA_FORMATS
from benchmarks.quality.measuring import BASE, Answer, Sums
from benchmarks.quality.report import claims, tables
from benchmarks.quality.spread import counted
from benchmarks.quality.variants import NAMES, PLAIN_4, WINDOWED

TOKENS = 1000
PIECES = 10
SHARES = np.linspace(0, 2, TOKENS)
OWN = tuple(name for name in NAMES if name not in WINDOWED)
NATS = dict(zip(OWN, (0.13, 0.06, 0.042, 0.07, 0.02, 0.013, 0.01, 0.008, 0.004, 0.0004, 0.13, 0.0005), strict=True))
"""The nats of each variant."""
BITS = dict(zip(OWN, (4.5, 5.0, 4.5, 4.0, 4.5, 5.0, 5.5, 6.5, 6.5, 8.5, 4.5, 8.5), strict=True))
BITS |= {"4w6": 4.5} | {name: format.bits for name, format in LLAMA_FORMATS.items()}
LLAMA = {"llama.cpp, q4_0": 0.06, "llama.cpp, q8_0": 0.001}


def sums(nats: float, piece: int, base: float = 2.5) -> Sums:
    """Return a piece's sums: `nats` a token of loss and divergence, more if it is odd and less if even."""
    own = nats * (1.2 if piece % 2 else 0.8)
    return Sums(TOKENS, TOKENS * (base + own), TOKENS * own, round(TOKENS * (1 - nats)), counted(own * SHARES))


def written(
    nats: dict[str, float] = NATS, llama: dict[str, float] | None = None, model: str = "SmolLM2-135M-Instruct"
) -> dict[str, Any]:
    theirs = llama or {}
    measured = Measured(
        {"model": model, "dtype": "float32", "scheme": "balanced", "length": 1001, "chunk": 512,
         "chat_tokens": [900, 900], "check_tokens": 256, "missing": {"other": "no kernel"},
         "auto": {"bits": "", "reason": ""},
         **({"llama_cpp": "0.3.36"} if theirs else {})},
        800,
        {name: Stored(100 * BITS[name] + 50, 100 * BITS[name]) for name in (*nats, *theirs)},
        {name: 2 * kl for name, kl in nats.items()},
        [
            ReadPiece("prose" if piece < PIECES / 2 else "code", {
                BASE: {0: Sums(TOKENS, 2500.0, 0.0, TOKENS, {})},
                **{name: {0: sums(kl, piece)} for name, kl in nats.items()},
                **({LLAMA_BASE: {0: Sums(TOKENS, 2600.0, 0.0, TOKENS, {})}} if theirs else {}),
                **{name: {0: sums(kl, piece, 2.6)} for name, kl in theirs.items()},
            })
            for piece in range(PIECES)
        ],
        [
            AskedChat(900, {
                BASE: [Answer(True, -0.5), Answer(False, -3.0)],
                **{name: [Answer(kl < 0.1, -0.5 - kl), Answer(False, -3.0)] for name, kl in nats.items()},
            })
            for _ in range(4)
        ],
        dict.fromkeys(theirs, LLAMA_BASE),
    )  # fmt: skip
    found: dict[str, Any] = json.loads(json.dumps(figures(measured)))
    return found


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    return written()


def test_figures_are_means_with_intervals_over_pieces(found: dict[str, Any]) -> None:
    four = found["variants"]["4"]
    assert found["perplexity"] == pytest.approx({each: math.exp(2.5) for each in ("all", "prose", "code")})
    assert found["tokens"] == {"prose": 5000, "code": 5000}
    assert four["ratio"]["value"] == pytest.approx(math.exp(0.02))
    assert 0.016 < four["divergence"]["low"] < four["divergence"]["value"] == pytest.approx(0.02)
    assert four["divergence"]["high"] < 0.024
    assert four["by_kind"]["prose"]["divergence"]["value"] == pytest.approx(0.02 * (3 * 0.8 + 2 * 1.2) / 5)
    assert four["same"]["value"] == pytest.approx(0.98)
    assert (four["bits"], four["bits_here"], four["bytes"]) == (4.5, 5.0, 450)


def test_recall_is_beside_unquantized(found: dict[str, Any]) -> None:
    plain, four = (found["variants"][name]["recall"] for name in (PLAIN_4, "4"))
    assert (found["recall"]["right"], found["recall"]["asked"]) == (4, 8)
    assert (four["right"], four["lost"], four["gained"]) == (4, 0, 0)
    assert (plain["right"], plain["lost"], plain["gained"]) == (0, 4, 0)
    assert four["logprob_change"]["value"] == pytest.approx(-0.01)


def test_what_is_to_be_reached(found: dict[str, Any]) -> None:
    assert [claim.met for claim in claims(found)] == [True] * 8
    worse = written({**NATS, "4": 0.05, "5/4": 0.03, "6/4": 0.02, "4/3": 0.14})
    missed = [claim.text for claim in claims(worse) if not claim.met]
    assert missed == [
        "4 bits: perplexity over unquantized",
        "5/4 bits: perplexity over unquantized",
        "6/4 bits: perplexity over unquantized",
        "4 bits: mean KL divergence",
        "5/4 bits: mean KL divergence",
        "4/3 bits: KL divergence over that of plain 4",
    ]
    assert [claim.text for claim in claims(written({"8": 0.001}))] == []


def test_what_auto_takes_has_to_be_good_on_any_model() -> None:
    other = written({"4": 0.05, "5/4": 0.018}, model="other")
    assert [claim.text for claim in claims(other)] == ["4 bits: bits stored of an element"]
    for bits, met in (("5/4", True), ("4", False), ("6", None)):
        reached = claims({**other, "auto": {"bits": bits, "reason": "auto: few"}})[:-1]
        assert [claim.met for claim in reached] == ([] if met is None else [met, met, True])
    assert "this model gets 5/4: few." in tables({**other, "auto": {"bits": "5/4", "reason": "auto: few"}})[-1].note


def test_what_auto_takes_has_to_last_in_long_contexts_and_chats() -> None:
    other = written({"4": 0.2, "5/4": 0.018}, model="other")
    parts = {"1": {"divergence": {"value": 0.01}}, "4": {"divergence": {"value": 0.014}}}
    long = {name: {**of, "by_part": parts} for name, of in other["variants"].items()}
    reached = claims({**other, "variants": long, "auto": {"bits": "4", "reason": "auto: few"}})
    [growth, recall] = [claim for claim in reached if "16K" in claim.text or "recall" in claim.text]
    assert (growth.value, growth.met) == (pytest.approx(1.4), False)
    assert (recall.value, recall.met) == (50.0, False)
    assert not [claim for claim in claims({**other, "auto": {"bits": "4", "reason": ""}}) if "16K" in claim.text]


def test_llama_cpp_is_beside_its_own_f16(found: dict[str, Any]) -> None:
    both = written(llama=LLAMA)
    q4 = both["variants"]["llama.cpp, q4_0"]
    assert (q4["base"], q4["bits"], q4["bytes"]) == (LLAMA_BASE, 4.5, 450)
    assert q4["ratio"]["value"] == pytest.approx(math.exp(0.06))
    assert q4["by_kind"]["prose"]["ratio"]["value"] == pytest.approx(math.exp(0.06 * (3 * 0.8 + 2 * 1.2) / 5))
    assert q4["divergence"]["value"] == pytest.approx(q4["by_part"]["0"]["divergence"]["value"]) == pytest.approx(0.06)
    assert both["bases"] == {LLAMA_BASE: pytest.approx(math.exp(2.6))}
    assert {name: of for name, of in both["variants"].items() if name not in LLAMA} == found["variants"]
    assert both["prediction"] == found["prediction"]
    beside = "4 bits: KL divergence over that of llama.cpp, q4_0"
    assert [claim.row() for claim in claims(both) if claim.text != beside] == [claim.row() for claim in claims(found)]
    [ratio] = [claim for claim in claims(both) if claim.text == beside]
    assert ratio.met and ratio.value == pytest.approx(0.02 / 0.06)
    assert [claim.met for claim in claims(written(llama={"llama.cpp, q4_0": 0.01})) if claim.text == beside] == [False]

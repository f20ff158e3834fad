"""The check of quantized KV: the arithmetic, and what it says of what it found."""

import math

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from inference_service.engine import quality
from inference_service.engine.quality import LADDER, Divergence, Quality, kl_divergences, measure
from inference_service.models.loaded import LoadedModel
from tests import tiny_models
from tests.inference_service.directories import written_by

TOKENS = quality.TOKENS


directory = written_by([tiny_models.write_llama])


rows_of_logits = st.integers(1, 70).flatmap(
    lambda rows: st.integers(1, 9).flatmap(
        lambda words: st.tuples(
            *[arrays.arrays(np.float32, (rows, words), elements=st.floats(-30, 30, width=32)) for _ in range(2)]
        )
    )
)


@given(rows_of_logits)
def test_divergence_is_what_numpy_says(pair: tuple[np.ndarray, np.ndarray]) -> None:
    p, q = (logits.astype(np.float64) for logits in pair)
    log_p, log_q = (x - np.log(np.exp(x).sum(-1, keepdims=True)) for x in (p, q))
    expected = (np.exp(log_p) * (log_p - log_q)).sum()
    found = kl_divergences(mx.array(pair[0]), mx.array(pair[1])).sum()
    assert found >= 0
    assert found == pytest.approx(expected, rel=1e-4, abs=1e-4 * len(p))


@pytest.mark.parametrize("at", [0, 31, 32, 40])
@pytest.mark.parametrize("broken", [math.nan, math.inf])
def test_logits_that_are_none_are_infinitely_far(at: int, broken: float) -> None:
    p = mx.random.normal((41, 50), key=mx.random.key(1))
    q = mx.array(p)
    q[at, 7] = broken
    assert kl_divergences(p, q).sum() == math.inf


def test_tokens_that_the_model_excludes_count_nothing() -> None:
    p = mx.random.normal((3, 50), key=mx.random.key(1))
    q = mx.random.normal((3, 50), key=mx.random.key(2))
    cut = kl_divergences(p[:, :40], q[:, :40]).sum()
    p[:, 40:] = -mx.inf
    q[:, 40:] = -mx.inf
    assert kl_divergences(p, q).sum() == pytest.approx(cut, rel=1e-5)
    q[:, 0] = -mx.inf
    assert kl_divergences(p, q).sum() == math.inf, "q excludes what p does not"


def test_small_differences_survive_16_bit_logits() -> None:
    p = mx.random.normal((8, 5000), key=mx.random.key(3)).astype(mx.bfloat16)
    q = (p + 0.02 * mx.random.normal(p.shape, key=mx.random.key(4))).astype(mx.bfloat16)
    exact = kl_divergences(p.astype(mx.float32), q.astype(mx.float32)).sum()
    assert 0 < exact < 0.02
    assert kl_divergences(p, q).sum() == exact


def of_means(found: dict[str, float]) -> Quality:
    """With tails that are no longer than means."""
    return Quality(10, {bits: Divergence(kl, kl) for bits, kl in found.items()})


nats = st.builds(Divergence, *[st.one_of(st.floats(0, most), st.just(math.inf)) for most in (0.05, 0.5, 0.01)])


@given(st.dictionaries(st.sampled_from([*LADDER, "4/3", "3", "6"]), nats, min_size=1), st.data())
def test_what_is_recommended(found: dict[str, Divergence], data: st.DataObject) -> None:
    subject, own = Quality(10, found), data.draw(st.sampled_from([*found]))
    best, told = subject.recommended, subject.verdict(own)
    passed = {
        name
        for name, kl in found.items()
        if kl.mean + kl.margin <= quality.MOST_NATS and kl.tail <= quality.MOST_TAIL_NATS
    }
    good = [bits for bits in LADDER if bits in passed]
    assert best == (good[0] if good else "")
    assert all(f"{kl.mean:.2g} with {bits} bits" in told for bits, kl in found.items())
    assert subject.is_good(own) == (own in passed) == (f"{own} bits are good" in told)
    assert (f'set kv_bits = "{best}"' in told) == bool(best and not subject.is_good(own))
    assert ("spoils" in told) == (not best and not subject.is_good(own))


def test_what_takes_less_memory_is_said() -> None:
    assert 'kv_bits = "4" takes less memory' in of_means({"4": 0.01, "8": 0.001}).verdict("8")
    for found, own in (({"4": 0.01}, "4"), ({"4/3": 0.02, "4": 0.01}, "4/3"), ({"4": 0.01, "3/5": 0.02}, "3/5")):
        assert of_means(found).verdict(own).endswith(f"{own} bits are good")
    assert of_means({"4": 3.0, "8": 2.0}).verdict("4").endswith('least with kv_bits = "8"')


def test_nan_is_never_good() -> None:
    for broken in (Divergence(math.nan, 0.0), Divergence(0.0, math.nan)):
        assert not broken.good
        assert Quality(10, {"4": broken}).recommended == ""


def test_what_a_slow_cpu_did_not_read_is_a_margin(model: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 1.0, 241.0])
    rows: list[np.ndarray] = []

    def found(p: mx.array, q: mx.array) -> np.ndarray:
        rows.append(kl_divergences(p, q))
        return rows[-1]

    monkeypatch.setattr(quality, "on_cpu", lambda: True)
    monkeypatch.setattr(quality, "work_clock", lambda: next(clock, 241.0))
    monkeypatch.setattr(quality, "kl_divergences", found)
    monkeypatch.setattr(quality, "MOST_NATS", 0.0)
    early = measure(model.engine.model, model.tokenizer, model.geometry, TOKENS, model.calibration)
    assert (early.tokens, [*early.divergences]) == (256, [*LADDER])
    for number, of in enumerate(early.divergences.values()):
        own = np.concatenate(rows[2 * number : 2 * number + 2])
        assert of.mean == pytest.approx(own.mean())
        assert of.margin == pytest.approx(4 * own.std() / 16)
    monkeypatch.setattr(quality, "MOST_NATS", 0.02)
    assert Divergence(0.019, 0.1).good and Divergence(0.016, 0.1, 0.004).good
    assert not Divergence(0.019, 0.1, 0.004).good


def test_other_bits_or_another_limit_ask_for_more(monkeypatch: pytest.MonkeyPatch) -> None:
    both, every = of_means({"4": 0.001, "8": 0.0001}), of_means(dict.fromkeys(LADDER, 3.0))
    assert both.answers("4") and both.answers("8") and not both.answers("5/4")
    assert Quality(10, {}).answers("5/4"), "nothing can be compared"
    monkeypatch.setattr(quality, "MOST_NATS", 0.0005)
    assert not both.answers("8"), "what is between was not measured"
    assert every.answers("5/4")

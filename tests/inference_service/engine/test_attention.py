"""Layers attend over the caches of a pass, or as mlx-lm's; which kernels are taken at load, and what is found there."""

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import mlx.core as mx
import pytest

from agentmem.errors import FailedPrecondition
from inference_service.engine import codec
from inference_service.engine.attention import AttentionBackend
from inference_service.engine.attention.reference import plain_attention
from inference_service.engine.attention.self_test import ROUNDING
from inference_service.engine.codec import KVCodec
from inference_service.engine.mlx_lm_adapter import ATTENTION_NAME
from inference_service.engine.paged import attention, kernels, write_kernels
from inference_service.engine.paged.kernels import Kernels, LayerBlocks
from inference_service.engine.paged.passes import KVCache, Pass, Piece, Pieces, Seen
from inference_service.engine.paged.sequence import BlockTable, Sequence
from inference_service.engine.paged.store import NO_KERNELS
from inference_service.models.proof import attention_paths
from tests.inference_service.engine.geometries import geometry, random
from tests.inference_service.engine.paged.test_in_blocks import Both
from tests.tiny_own_attention import write_deepseek3, write_deepseek32, write_kimi_linear, write_stablelm

pytestmark = pytest.mark.sampled(2)


class Attended(KVCache):
    """A cache that says by what it was asked."""

    state: list[mx.array] = []  # noqa: RUF012 - it has none

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[Any, Any]:
        return self, self

    def attend(self, queries: mx.array, scale: float, sinks: mx.array | None) -> mx.array:
        return scale * queries


def a_pass(*tokens: int) -> Pass:
    return Pass([Piece(Sequence(BlockTable(256)), n) for n in tokens])


def cache_of(of: Pass, window: int = 0) -> Attended:
    return Attended(of, 0, KVCodec(), window)


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A module of a model's that attends by mlx-lm's function, in which a backend is installed twice."""
    made: Any = ModuleType("a_models_module")
    setattr(made, ATTENTION_NAME, fused)
    monkeypatch.setitem(sys.modules, made.__name__, made)
    layer = type("Layer", (), {"__module__": made.__name__})()
    made.backend = AttentionBackend()
    for backend in (AttentionBackend(), made.backend):
        backend.install(SimpleNamespace(named_modules=lambda: [("", layer)]))
    made.attend = getattr(made, ATTENTION_NAME)
    return made


def fused(
    queries: mx.array, keys: mx.array, values: mx.array, cache: Any, scale: float, mask: Any, sinks: Any = None
) -> mx.array:
    return mx.fast.scaled_dot_product_attention(queries, keys, values, scale=scale, mask=mask, sinks=sinks)


def test_arrays_go_the_old_way_and_caches_of_a_pass_are_asked(module: Any) -> None:
    q, k, v = random(1, 4, 3, 64), random(1, 2, 9, 64, seed=1), random(1, 2, 9, 64, seed=2)
    wanted = fused(q, k, v, None, 0.5, "causal")
    assert mx.array_equal(module.attend(q, k, v, cache=None, scale=0.5, mask="causal"), wanted)
    assert module.backend.calls == 0
    cache = cache_of(a_pass(3))
    assert mx.array_equal(module.attend(q, k, v, cache=cache, scale=0.5, mask="causal"), wanted)
    assert mx.array_equal(module.attend(q, cache, cache, cache=cache, scale=0.5, mask=None), q / 2)
    assert (module.backend.calls, module.backend.heads, module.backend.latents) == (2, 4, False)
    assert module.attend.fallback is fused


@pytest.mark.parametrize("own_cache", [True, False])
@pytest.mark.parametrize("window", [0, 5])
def test_rows_attend_over_what_their_piece_is_shown(window: int, own_cache: bool, module: Any) -> None:
    of, sinks = a_pass(1, 3, 1), random(4, seed=9)
    queries = random(5, 4, 1, 64)
    shown = [(7 if not window else 5, 1), (8 if not window else 7, 3), (1, 1)]
    pieces = Pieces(
        Seen(random(1, 2, tokens, 64, seed=at), random(1, 2, tokens, 64, seed=10 + at), n, window)
        for at, (tokens, n) in enumerate(shown)
    )
    cache = cache_of(of, window) if own_cache else None
    found = module.attend(queries, pieces, pieces, cache=cache, scale=0.125, mask=None, sinks=sinks)
    row = 0
    for k, v, n, _ in pieces:
        own = queries[row : row + n].swapaxes(0, 2)
        exact = plain_attention(own, k, v, 0.125, window or None, sinks)
        assert mx.allclose(found[row : row + n].swapaxes(0, 2), exact, atol=1e-4)
        row += n


SMALL = geometry(dtype=mx.float16)


@pytest.mark.parametrize("name", ["rotated", "rotated_back"])
def test_packing_and_unpacking_without_means_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    original = getattr(codec, name)
    monkeypatch.setattr(codec, name, lambda x, mean: original(x))
    with pytest.raises(FailedPrecondition, match="packed or unpacked wrongly on this backend"):
        attention_paths(geometry())


Attention = Callable[..., mx.array]


def missing(attend: Attention) -> Attention:
    def attend_by_none(*_: Any) -> mx.array:
        raise RuntimeError("no kernel for such K")

    return attend_by_none


def without_own(attend: Attention) -> Attention:
    """It does not see a row's own token."""

    def attend_before(of: LayerBlocks, *more: Any) -> mx.array:
        spans = mx.maximum(of.tables.spans - mx.array([0, 1]), 1)
        return attend(of._replace(tables=of.tables._replace(spans=spans)), *more)

    return attend_before


def others_table(attend: Attention) -> Attention:
    def attend_elsewhere(of: LayerBlocks, *more: Any) -> mx.array:
        blocks = of.tables.blocks[mx.argmax(of.tables.spans[:, 1])]
        blocks = mx.contiguous(mx.broadcast_to(blocks, of.tables.blocks.shape))
        return attend(of._replace(tables=of.tables._replace(blocks=blocks)), *more)

    return attend_elsewhere


def smaller(attend: Attention) -> Attention:
    return lambda *of: 0.9 * attend(*of)


def sharper(attend: Attention) -> Attention:
    return lambda of, queries, scale, *more: attend(of, queries, 1.1 * scale, *more)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["flash_decoding", "flash_prefill"])
@pytest.mark.parametrize("fault", [missing, without_own, others_table, smaller, sharper])
def test_a_wrong_or_missing_kernel_is_not_taken_and_said(
    fault: Callable[[Attention], Attention], name: str, on_cuda: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other one is, and where none is right a layer's K and V are unpacked."""
    monkeypatch.setattr(attention, name, fault(getattr(attention, name)))
    reports, taken = attention_paths(SMALL)
    one = name != "flash_decoding"
    assert taken == Kernels(one=one, few=not one)
    assert [(report.phase, report.path) for report in reports] == [
        ("prefill", "unpacked"),
        *([] if one else [("prefill", "packed")]),
        ("decode", "packed" if one else "unpacked"),
    ]
    assert ("no kernel for such K" if fault is missing else "differs") in reports[-1].note
    assert max(report.relative_error for report in reports) < ROUNDING[SMALL.dtype]


@pytest.mark.slow
def test_kernels_of_what_they_do_not_know_are_not_taken(on_cuda: None) -> None:
    """A few float32 queries have none; layers that compute attention by themselves need none."""
    reports, taken = attention_paths(geometry())
    assert (taken.one, taken.few) == (True, False)
    assert "float32 queries" in reports[-1].note
    reports, taken = attention_paths(replace(SMALL, shows_arrays=True))
    assert (taken, {report.path for report in reports}) == (NO_KERNELS, {"unpacked"})


@pytest.mark.slow
@pytest.mark.parametrize("what", ["packed", "written", "read"])
def test_a_model_is_refused_where_kv_is_not_written_or_read_right(
    what: str, on_cuda: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if what == "packed":
        packed: Any = codec.encoded
        monkeypatch.setattr(codec, "encoded", lambda k, v, *more: packed(v, v, *more))
    elif what == "written":
        write: Any = write_kernels._write
        monkeypatch.setattr(write_kernels, "_write", lambda of, k, v, *more: write(of, v, v, *more))
    else:
        read: Any = kernels._decoded
        monkeypatch.setattr(kernels, "_decoded", lambda of, begins, *more: read(of, begins - 1, *more))
    with pytest.raises(FailedPrecondition, match="wrong"):
        attention_paths(SMALL)


@pytest.mark.slow
@pytest.mark.parametrize("write", [write_stablelm, write_deepseek3, write_deepseek32, write_kimi_linear])
def test_layers_that_attend_by_themselves_see_what_is_in_blocks(
    write: Callable[[Path], Path], tmp_path: Path, kernels: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(codec, "on_cpu", lambda: False)
    both = Both(tmp_path, write, monkeypatch)
    both.worlds[0].store.kernels = NO_KERNELS
    both.run(("one", 100))
    both.run(("one", 170))
    both.run(("other", 50))
    for _ in range(6):
        both.run(("one", 1), ("other", 1))
    both.run(("other", 1))
    both.run(("other", 20))
    assert both.error() < 5e-3

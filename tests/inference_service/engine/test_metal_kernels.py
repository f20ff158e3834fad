"""The kernel for Apple's GPUs over the pool's blocks: right on such a GPU, and its device code wherever g++ is."""

from collections.abc import Callable
from dataclasses import replace
from itertools import product

import mlx.core as mx
import numpy as np
import pytest

from agentmem.errors import FailedPrecondition
from inference_service.engine.attention import self_test
from inference_service.engine.attention.chunks import joined
from inference_service.engine.attention.reference import plain_attention
from inference_service.engine.attention.self_test import row_in_segments_error
from inference_service.engine.codec import KVCodec
from inference_service.engine.geometry import Geometry, LayerGroup
from inference_service.engine.metal_kernel import available
from inference_service.engine.paged import metal_attention
from inference_service.engine.paged.arena import HostArena
from inference_service.engine.paged.kernels import PagedGroup
from inference_service.engine.paged.layout import BlockLayout
from inference_service.engine.paged.metal_attention import MOST_SEGMENTS, Places, flash_decoding
from inference_service.engine.paged.store import Kernels
from inference_service.engine.quantization import BALANCED, PLAIN, ROTATED, KVFormat, Quantized
from inference_service.models import proof
from tests.inference_service.engine.geometries import NARROW, OF_16_BITS, PAIRS, SHAPES, geometry
from tests.inference_service.engine.metal_on_cpu import MetalOnCPU

needs_metal = pytest.mark.skipif(not available(), reason="as many elements as real models have take a GPU")
on_cpu = pytest.mark.skipif(available(), reason="of kernels as g++ compiles them")
TYPES = (mx.float32, mx.bfloat16, mx.float16)
SHORT = ((1, (290, 20)),)


def with_bits(made: Geometry, k: int, v: int, scheme: str | None = None) -> Geometry:
    return replace(made, format=replace(made.format, k_bits=k, v_bits=v, scheme=scheme or made.format.scheme))


@pytest.mark.slow
@pytest.mark.sampled(6)
@pytest.mark.parametrize("shape", [*SHAPES, *NARROW])
def test_one_query_is_right(shape: Geometry, metal_kernels: None) -> None:
    assert row_in_segments_error(shape) < (1e-4 if shape.dtype == mx.float32 else 3e-2)


@needs_metal
@pytest.mark.parametrize("shape", OF_16_BITS)
def test_one_query_of_real_models_is_right(shape: Geometry) -> None:
    assert row_in_segments_error(shape) < 3e-2


@pytest.mark.slow
@pytest.mark.parametrize(("k", "v"), PAIRS)
def test_bits_of_k_and_v_apart_are_right(k: int, v: int, metal_kernels: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(self_test, "_ONE", SHORT)
    shape = with_bits(geometry(k_dim=96, v_dim=32), k, v)
    assert row_in_segments_error(shape) < 1e-4


@pytest.mark.slow
@pytest.mark.sampled(15)
@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("scheme", [PLAIN, ROTATED, BALANCED])
@pytest.mark.parametrize(("k", "v"), PAIRS)
def test_types_and_schemes_are_right(
    k: int, v: int, scheme: str, dtype: mx.Dtype, metal_kernels: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(self_test, "_ONE", SHORT)
    shape = with_bits(geometry(dtype=dtype, window=30), k, v, scheme)
    assert row_in_segments_error(shape) < (1e-4 if dtype == mx.float32 else 3e-2)


class Rows:
    """Rows of one head in blocks of 64 tokens that lie in no order, one in a segment, or more where there are many;
    all else there is poison. `seen` are K and V of each, its own token the last."""

    def __init__(
        self, lengths: list[int], codec: KVCodec, width: int = 64, kv_heads: int = 1, dtype: mx.Dtype = mx.float32
    ) -> None:
        block, by = 64, codec.format
        full = LayerGroup((0, 2), kv_heads, width, width)
        made = Geometry(kv_heads, dtype, by, full)
        layout = BlockLayout(made.shapes(full, block))
        self.group, self.codec = PagedGroup.of(made, full, layout, block), codec
        counts = [-(-length // block) for length in lengths]
        total = sum(counts)
        arena = HostArena(layout, total + 1, -(-(total + 1) // MOST_SEGMENTS))
        arena.take(range(total + 1))
        for number in range(total + 1):
            arena.words(number)[:] = 0xFFFFFFFF
        order = np.random.default_rng(3).permutation(total).tolist()
        self.tables, self.seen, own = [], [], []
        for row, length in enumerate(lengths):
            k, v = (mx.random.normal((1, kv_heads, length + 1, width), key=mx.random.key(9 * row + i)) for i in (1, 2))
            packed = codec.encode(k.astype(dtype), v.astype(dtype))
            table = [order.pop() for _ in range(counts[row])]
            for at, number in enumerate(table):
                tensors = [part for side in packed for part in side.between(at * block, min(length, (at + 1) * block))]
                for view, part in zip(layout.views(arena.words(number)).values(), tensors, strict=True):
                    view[1, :, : part.shape[2]] = np.array(part.view(mx.uint16) if part.dtype.size == 2 else part)[0]
            self.tables.append(table)
            self.seen.append(codec.decode(*packed))
            own.append([side.between(length, length + 1) for side in packed])
        self.spans = [(0, 0, length) for length in lengths]
        self.arena = arena
        sides = [
            Quantized(*(mx.concatenate(list(part)) for part in zip(*side, strict=True)))
            for side in zip(*own, strict=True)
        ]
        self.own = sides[0], sides[1]

    def attend(self, queries: mx.array, scale: float, sinks: mx.array | None = None) -> mx.array:
        segments, blocks = self.arena.placed(self.tables)
        places = Places(segments, mx.array(blocks), mx.array(self.spans, dtype=mx.int32))
        return flash_decoding(self.group, mx.array([1]), queries, self.own, places, self.codec, scale, sinks)


@pytest.mark.slow
@pytest.mark.parametrize("tokens", [0, 1, 3, 63, 64, 65, 300, 512, 40 * 64])
def test_any_number_of_tokens(tokens: int, metal_kernels: None) -> None:
    """Arrays of fewer than 8 elements, which MLX passes in another address space; and more chunks than lanes."""
    assert error_of(tokens, tokens // 2) < 1e-5


def error_of(tokens: int, hidden: int) -> float:
    """The error with one head over so many tokens and its own, the first of which are hidden; with a sink and means."""
    keys = iter(mx.random.split(mx.random.key(3), 2))
    codec = KVCodec(KVFormat(4, 4, 32), (mx.random.normal((1, 64), key=next(keys)), mx.ones((1, 64))))
    q, sinks, rows = mx.random.normal((1, 1, 1, 64), key=next(keys)), mx.array([4.0]), Rows([tokens], codec)
    [(k, v)] = rows.seen
    rows.tables = [rows.tables[0][hidden // 64 :]]
    rows.spans = [(hidden // 64 * 64, hidden, tokens)]
    exact = plain_attention(q, k[:, :, hidden:], v[:, :, hidden:], 0.2, sinks=sinks)
    return float(mx.abs(rows.attend(q, 0.2, sinks) - exact).max().item())  # type: ignore[arg-type]


@pytest.mark.slow
def test_rows_of_any_lengths_are_each_what_it_is_alone(metal_kernels: None) -> None:
    rows = Rows([130, 0, 64, 5], KVCodec(KVFormat(4, 4, 32)))
    q = mx.random.normal((4, 3, 1, 64), key=mx.random.key(5))
    found = rows.attend(q, 0.2)
    for row, (k, v) in enumerate(rows.seen):
        assert mx.allclose(found[row : row + 1], plain_attention(q[row : row + 1], k, v, 0.2), atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["segment", "place", "rows", "long", "early"])
def test_a_table_or_a_length_that_is_wrong_shows(fault: str, metal_kernels: None) -> None:
    rows = Rows([130, 128], KVCodec(KVFormat(4, 4, 32)))
    q = mx.random.normal((2, 1, 1, 64), key=mx.random.key(5))
    exact = mx.concatenate([plain_attention(q[row : row + 1], *rows.seen[row], 0.2) for row in (0, 1)])
    assert mx.allclose(rows.attend(q, 0.2), exact, atol=1e-5)
    if fault == "segment":
        placed = rows.arena.placed
        rows.arena.placed = lambda tables: (placed(tables)[0][::-1], placed(tables)[1])  # type: ignore[method-assign]
    elif fault == "place":
        rows.tables[0][0] = 5
    elif fault == "rows":
        rows.tables[:] = [rows.tables[1] + rows.tables[0][2:], rows.tables[0][:2]]
    elif fault == "long":
        rows.spans[0] = (0, 0, 131)
    else:
        rows.spans[0] = (0, 64, 130)
    assert not mx.allclose(rows.attend(q, 0.2), exact, atol=1e-2)


@pytest.mark.slow
def test_widths_that_do_not_fill_groups(metal_kernels: None) -> None:
    """Queries of 80 over K of 96: outputs are as wide as packed V, and what fills it up is cut off later."""
    keys = iter(mx.random.split(mx.random.key(4), 3))
    means = tuple(mx.random.normal((4, 96), key=next(keys)) for _ in "kv")
    rows = Rows([70, 70], KVCodec(KVFormat(5, 3, 32), (means[0], means[1])), 96, 4)
    q = mx.random.normal((2, 4, 1, 80), key=next(keys))
    found, (k, v) = rows.attend(q, 0.1), (mx.concatenate(list(side)) for side in zip(*rows.seen, strict=True))
    assert found.shape == (2, 4, 1, 96)
    assert mx.allclose(found, plain_attention(mx.pad(q, [(0, 0)] * 3 + [(0, 16)]), k, v, 0.1), atol=1e-4)


BARRIER = "threadgroup_barrier(mem_flags::mem_threadgroup);"
CHUNKS, MERGE = "paged_decoding", "joined"
LEFT_OUT = {
    "signs": (CHUNKS, "float with_sign(float x, int element) {", "return x;"),
    "rotation of queries": (CHUNKS, "void transform_row(thread float* x, int lane) {", "return;"),
    "rotation of outputs": (MERGE, "float* memory, int thread_index, int lane) {", "return x;"),
    "mean of keys": (MERGE, "int thread_index, int lane) {\nfloat sum = 0.0f;", "return sum;"),
}


@pytest.mark.slow("rotation of queries", "signs")
@on_cpu
@pytest.mark.parametrize("left_out", LEFT_OUT)
def test_what_is_left_out_of_a_kernel_is_a_fault_that_shows(
    left_out: str, metal_kernels: None, metal_on_cpu: MetalOnCPU, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel, begin, rest = LEFT_OUT[left_out]
    done = change(metal_on_cpu, monkeypatch, kernel, lambda code: code.replace(begin, begin + rest, 1))
    assert error_of(150, 0) > 1e-2
    assert done == [True]


@pytest.mark.slow
@on_cpu
def test_what_is_read_behind_a_segment_is_a_fault_that_shows(
    metal_kernels: None, metal_on_cpu: MetalOnCPU, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = "static_cast<int64_t>(places[entry + places_strides[2]])"
    change(metal_on_cpu, monkeypatch, CHUNKS, lambda code: code.replace(place, f"({place} + 1)"))
    with pytest.raises(RuntimeError, match="heap-buffer-overflow"):
        error_of(50, 0)


@pytest.mark.slow
@on_cpu
@pytest.mark.sampled(3)
@pytest.mark.parametrize(("kernel", "which"), [*product([CHUNKS], range(6)), *product([MERGE], range(3))])
def test_a_barrier_that_is_left_out_shows(
    kernel: str, which: int, metal_kernels: None, metal_on_cpu: MetalOnCPU, monkeypatch: pytest.MonkeyPatch
) -> None:
    def without(code: str) -> str:
        parts = code.split(BARRIER)
        assert len(parts) == (7 if kernel == CHUNKS else 4)
        return BARRIER.join(parts[: which + 1]) + ";" + BARRIER.join(["", *parts[which + 1 :]])[len(BARRIER) :]

    done = change(metal_on_cpu, monkeypatch, kernel, without)
    assert not error_of(300, 0) < 1e-5
    assert done == [True]


def change(
    metal_on_cpu: MetalOnCPU, monkeypatch: pytest.MonkeyPatch, name: str, by: Callable[[str], str]
) -> list[bool]:
    """From now on a kernel of this name has its code changed; whether it was, for each."""
    changes = []

    def changed(*, header: str, source: str, **others: object) -> object:
        if str(others["name"]).startswith(name):
            code = by(header + "\0" + source)
            changes.append(code != header + "\0" + source)
            header, source = code.split("\0")
        return metal_on_cpu(header=header, source=source, **others)

    monkeypatch.setattr(mx.fast, "metal_kernel", changed)
    return changes


@pytest.mark.parametrize(
    "changed",
    [{"format": KVFormat(2, 2, 32)}, {"k_dim": 520}, {"v_dim": 2048}, {"tokens": 16384}, {"dtype": mx.float16}],
    ids=["bits", "width", "threads", "memory", "type"],
)
def test_what_the_kernel_does_not_know_is_refused(changed: dict[str, object]) -> None:
    rows = Rows([4], KVCodec(KVFormat(4, 4, 32)))
    rows.group = replace(rows.group, **changed)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"flash decoding|queries of"):
        rows.attend(mx.zeros((1, 2, 1, 64)), 1.0)


def test_more_segments_than_a_kernel_has_buffers_for_are_refused() -> None:
    rows = Rows([4], KVCodec(KVFormat(4, 4, 32)))
    segments, blocks = rows.arena.placed(rows.tables)
    places = Places(segments * (MOST_SEGMENTS + 1), mx.array(blocks), mx.array(rows.spans, dtype=mx.int32))
    with pytest.raises(ValueError, match="32 segments"):
        flash_decoding(rows.group, mx.array([1]), mx.zeros((1, 1, 1, 64)), rows.own, places, rows.codec, 1.0, None)


def test_means_of_another_type_are_refused() -> None:
    codec = KVCodec(means=(mx.zeros((1, 64)), mx.zeros((1, 64))))
    stats, partial = mx.zeros((1, 1, 1, 3, 2)), mx.zeros((1, 1, 1, 3, 64))
    merge = metal_attention._merge_kernel
    with pytest.raises(ValueError, match="means of another type"):
        joined(stats, partial, mx.zeros((1, 1, 1, 64), mx.float16), 1.0, None, codec, codec.v_mean, merge)


@pytest.mark.parametrize(
    ("flag", "metal", "right", "taken"),
    [(True, True, True, True), (True, True, False, False), (True, False, True, False), (False, True, True, False)],
)
def test_it_is_taken_by_one_flag_where_metal_is_and_only_where_it_is_right(
    flag: bool, metal: bool, right: bool, taken: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def tested(_: Geometry) -> float:
        if not right:
            raise FailedPrecondition("one query differs")
        return 0.0

    monkeypatch.setattr(proof, "METAL_IN_BLOCKS", flag)
    monkeypatch.setattr(proof, "metal_available", lambda: metal)
    monkeypatch.setattr(proof, "has_own_memory", lambda: False)
    monkeypatch.setattr(proof, "row_in_segments_error", tested)
    reports, kernels = proof.attention_paths(geometry())
    assert kernels == Kernels(one=taken)
    assert ("differs" in reports[1].note) == (flag and metal and not right)


def test_the_flag_is_off() -> None:
    """No such GPU has run the kernel."""
    assert not proof.METAL_IN_BLOCKS

"""The seam's self-test: what it proves, what it must find, and how it chooses among paths that are right."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import mlx.core as mx
import pytest
from inference_service.engine.attention.speed import MEASURED, Figures, Measure, PathChoice, like
from inference_service.engine.caches import QuantizedKVCache

from agentmem.errors import FailedPrecondition
from inference_service.engine.attention import (
    DEQUANTIZE_FUSED,
    FLASH_DECODING,
    FLASH_PREFILL,
    QUANTIZED_MATMUL,
    AttentionBackend,
    PathSpeeds,
    paths,
)
from inference_service.engine.attention.self_test import decode_error, over_caches, prefill_error, tolerance
from inference_service.engine.cuda_kernel import available
from inference_service.engine.geometry import Geometry, LayerGroup
from inference_service.engine.quantization import FOUR_BITS, KVFormat, quantize
from tests.inference_service.engine.geometries import SHAPES, geometry

pytestmark = pytest.mark.sampled(2)

right_here = paths.candidates()[0]


@pytest.mark.slow("shape2")
@pytest.mark.parametrize("shape", SHAPES)
def test_both_phases_agree_with_plain_attention(shape: Geometry) -> None:
    reports = AttentionBackend().self_test(shape)
    assert [(report.phase, report.path) for report in reports] == [
        ("prefill", DEQUANTIZE_FUSED),
        ("decode", right_here),
    ], "float32 has no kernel for a few queries"
    assert all(" x " not in report.note for report in reports), "nothing was measured"
    assert max(report.relative_error for report in reports) < tolerance(mx.float32)


@pytest.mark.skipif(available(), reason="MLX on CUDA has no quantized matmul over strided K")
@pytest.mark.parametrize("shape", SHAPES)
def test_quantized_matmul_is_right(shape: Geometry) -> None:
    assert decode_error(over_caches(paths.unfused), shape) < tolerance(mx.float32)


@pytest.mark.parametrize("shape", SHAPES)
def test_dequantization_is_right(shape: Geometry) -> None:
    assert decode_error(over_caches(paths.dequantized), shape) < tolerance(mx.float32)


def test_a_few_queries_are_those_of_a_next_turn() -> None:
    assert [paths.few(n) for n in (1, 2, 50, 511, 512, 2048)] == [False, True, True, True, False, False]


@pytest.mark.slow
@pytest.mark.parametrize("window", [0, 3])
def test_the_seam_takes_the_path_for_a_few_queries_where_it_is_right(
    window: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[int] = []

    def counted(*arguments: object) -> mx.array:
        taken.append(1)
        return paths.dequantized(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(paths, "available", lambda: True)
    monkeypatch.setitem(paths.ONE_QUERY, FLASH_DECODING, missing)
    monkeypatch.setitem(paths.MANY_QUERIES, FLASH_PREFILL, counted)
    shape, seam = geometry(window=window), AttentionBackend()
    assert prefill_error(seam.attend, shape) < tolerance(mx.float32)
    assert not taken, "nothing was proved yet"
    prefill = [report.path for report in seam.self_test(shape) if report.phase == "prefill"]
    assert prefill == [DEQUANTIZE_FUSED, FLASH_PREFILL]
    taken.clear()
    assert prefill_error(seam.attend, shape) < tolerance(mx.float32)
    assert len(taken) == (8 if window else 4), "each group with and without sinks, and two numbers of queries"
    assert prefill_error(seam.attend, geometry(window=window, kv_heads=1)) < tolerance(mx.float32)
    assert len(taken) == (8 if window else 4), "other heads were not proved"


def test_a_wrong_prefill_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    fused = mx.fast.scaled_dot_product_attention
    monkeypatch.setattr(
        mx.fast, "scaled_dot_product_attention", lambda q, k, v, scale, mask, sinks: fused(q, k, v, scale=scale)
    )
    with pytest.raises(FailedPrecondition, match="prefill"):
        AttentionBackend().self_test(geometry())


@pytest.mark.slow
def test_a_wrong_or_missing_path_for_a_few_queries_is_not_taken_and_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paths, "available", lambda: True)
    shape = geometry(window=40)
    for fault, words in (
        (missing, "no kernel"),
        (ignores_masks, "differs"),
        (ignores_sinks, "differs"),
        (forgets_the_last_token, "differs"),
    ):
        monkeypatch.setitem(paths.MANY_QUERIES, FLASH_PREFILL, fault)
        seam = AttentionBackend()
        prefill = [report for report in seam.self_test(shape) if report.phase == "prefill"]
        assert [report.path for report in prefill] == [DEQUANTIZE_FUSED]
        assert FLASH_PREFILL in prefill[0].note
        assert words in prefill[0].note
        assert prefill_error(seam.attend, shape) < tolerance(mx.float32), "the fused one is taken, for all layers"


def test_a_geometry_that_has_passed_is_not_tested_again_and_one_that_failed_is(monkeypatch: pytest.MonkeyPatch) -> None:
    fused, calls = mx.fast.scaled_dot_product_attention, []

    def counted(*arguments: object, **named: object) -> mx.array:
        calls.append(1)
        return mx.zeros_like(arguments[0]) if len(calls) == 1 else fused(*arguments, **named)

    monkeypatch.setattr(mx.fast, "scaled_dot_product_attention", counted)
    seam = AttentionBackend()
    with pytest.raises(FailedPrecondition, match="prefill"):
        seam.self_test(geometry())
    reports, tested = seam.self_test(geometry()), len(calls)
    assert seam.self_test(geometry()) == reports
    assert len(calls) == tested > 1
    seam.self_test(geometry(kv_heads=1))
    assert len(calls) > tested


def missing(*_: object) -> mx.array:
    raise RuntimeError("no kernel for strided K")


def zeros(queries: mx.array, keys: object, values: object, *_: object) -> mx.array:
    return mx.zeros((*queries.shape[:3], 64))


def ignores_masks(queries, keys, values, by, scale, mask, sinks) -> mx.array:  # type: ignore[no-untyped-def]
    return paths.dequantized(queries, keys, values, by, scale, None, sinks)


def ignores_sinks(queries, keys, values, by, scale, mask, sinks) -> mx.array:  # type: ignore[no-untyped-def]
    return paths.dequantized(queries, keys, values, by, scale, mask, None)


def forgets_the_last_token(queries, keys, values, by, scale, mask, sinks) -> mx.array:  # type: ignore[no-untyped-def]
    keys, values = (side.between(0, side.tokens - 1) for side in (keys, values))
    mask = mask if mask is None or isinstance(mask, str) else mask[..., :-1]
    return paths.dequantized(queries, keys, values, by, scale, mask, sinks)


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (missing, "no kernel for strided K"),
        (zeros, "differs"),
        (ignores_masks, "differs"),
        (ignores_sinks, "differs"),
        (forgets_the_last_token, "differs"),
    ],
)
def test_a_wrong_or_missing_decode_kernel_is_replaced_and_said(
    fault: paths.Path, words: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(paths, "available", lambda: False)
    monkeypatch.setitem(paths.ONE_QUERY, QUANTIZED_MATMUL, fault)
    seam = AttentionBackend()
    _, decode = seam.self_test(geometry(), PathSpeeds(tmp_path / "speeds.json", measured_as({QUANTIZED_MATMUL: 0.0})))
    assert decode.path == seam.choice(geometry()).at(1, 100) == DEQUANTIZE_FUSED, "however fast the wrong one is"
    assert f"{QUANTIZED_MATMUL}: " in decode.note and words in decode.note
    assert decode.relative_error < 1e-4


def test_a_model_is_refused_where_no_path_is_right(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paths, "available", lambda: False)
    for path in list(paths.ONE_QUERY):
        monkeypatch.setitem(paths.ONE_QUERY, path, zeros)
    with pytest.raises(FailedPrecondition, match=r"quantized_matmul: .*differs.*dequantize\+fused: .*differs"):
        AttentionBackend().self_test(geometry())


def measured_as(seconds: dict[str, float]):  # type: ignore[no-untyped-def]
    """A measurement that finds these, the same for all shapes, and everything else slow. `calls` counts."""

    def measure(_: Geometry, names: Sequence[str]) -> Figures:
        measure.calls += 1  # type: ignore[attr-defined]
        return {shape: {name: seconds.get(name, 1.0) for name in names} for shape in MEASURED}

    measure.calls = 0  # type: ignore[attr-defined]
    return measure


def test_the_fastest_of_the_right_paths_is_taken_where_it_is_the_fastest(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(paths, "available", lambda: False)
    monkeypatch.setitem(paths.ONE_QUERY, QUANTIZED_MATMUL, paths.dequantized)  # CUDA has none

    def measure(_: Geometry, names: Sequence[str]) -> Figures:
        assert list(names) == [QUANTIZED_MATMUL, DEQUANTIZE_FUSED]
        return {shape: {QUANTIZED_MATMUL: 2e-6, DEQUANTIZE_FUSED: 1e-6 * shape.rows} for shape in MEASURED}

    seam = AttentionBackend()
    _, *decode = seam.self_test(geometry(), PathSpeeds(tmp_path / "speeds.json", measure))
    assert [seam.choice(geometry()).at(rows, 5000) for rows in (1, 2, 3, 8, 100)] == [DEQUANTIZE_FUSED] * 2 + [
        QUANTIZED_MATMUL
    ] * 3
    assert [report.path for report in decode] == [DEQUANTIZE_FUSED, QUANTIZED_MATMUL]
    assert decode[0].note.startswith("1 x 1024 tokens: dequantize+fused 1 µs, quantized_matmul 2 µs; 1 x 16384 tokens:")
    assert "8 x" not in decode[0].note and "1 x" not in decode[1].note


def test_what_stands_for_what() -> None:
    assert [like(1, 1), like(2, 4095), like(1, 4096), like(3, 10), like(64, 1 << 20)] == [
        MEASURED[0],
        MEASURED[0],
        MEASURED[1],
        MEASURED[2],
        MEASURED[3],
    ]
    assert PathChoice(["a", "b"]).taken == ["a"], "the first where nothing was measured"


def measured_by(seconds: Callable[[int], dict[str, float]]) -> Measure:
    return lambda _, names: {shape: {name: seconds(shape.rows)[name] for name in names} for shape in MEASURED}


def test_the_seam_takes_the_path_that_was_chosen_for_such_heads(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(paths.ONE_QUERY, QUANTIZED_MATMUL, paths.dequantized)  # CUDA has none
    seam, taken = AttentionBackend(), []
    sooner = measured_by(lambda rows: {QUANTIZED_MATMUL: rows, DEQUANTIZE_FUSED: 2.0})
    later = measured_by(lambda rows: {QUANTIZED_MATMUL: 2.0, DEQUANTIZE_FUSED: rows})
    monkeypatch.setattr(paths, "available", lambda: False)
    seam.self_test(geometry(group=64), PathSpeeds(tmp_path / "a.json", sooner))
    seam.self_test(geometry(kv_heads=1, group=64), PathSpeeds(tmp_path / "b.json", later))
    for name, path in list(paths.ONE_QUERY.items()):
        monkeypatch.setitem(paths.ONE_QUERY, name, lambda *a, name=name, path=path: (taken.append(name), path(*a))[1])
    for kv_heads in (2, 1, 4):
        for rows in (1, 8):
            k = quantize(mx.random.normal((rows, kv_heads, 9, 64)), FOUR_BITS.k)
            seam.attend(mx.random.normal((rows, 4, 1, 64)), k, k, QuantizedKVCache(), 0.125, None)
    of_the_first, of_the_second = taken[:2], taken[2:4]
    assert of_the_first == [QUANTIZED_MATMUL, DEQUANTIZE_FUSED], "whatever was loaded later"
    assert of_the_second == of_the_first[::-1]
    assert taken[4:] == [DEQUANTIZE_FUSED] * 2, "what every backend has, where nothing was tested"


def test_speed_is_measured_once_per_geometry_and_set_of_paths(tmp_path: Path) -> None:
    file, names = tmp_path / "worker" / "speeds.json", ["a", "b"]
    measure = measured_as({"a": 0.5})
    found = PathSpeeds(file, measure).of(geometry(), names)
    assert PathSpeeds(file, measure).of(geometry(), names) == found
    assert measure.calls == 1
    PathSpeeds(file, measure).of(geometry(kv_heads=1), names)
    PathSpeeds(file, measure).of(geometry(), [*names, "c"])
    assert measure.calls == 3
    assert PathSpeeds(file, measure).of(geometry(), names) == found
    assert measure.calls == 3, "each is remembered"


@pytest.mark.parametrize("damage", ["", "not json", "[]", '"text"', "null", "number", "shape", "path"])
def test_a_damaged_memory_of_speeds_is_only_a_miss(damage: str, tmp_path: Path) -> None:
    file, names = tmp_path / "speeds.json", ["a", "b"]
    measure = measured_as({"a": 0.5})
    found = PathSpeeds(file, measure).of(geometry(), names)
    [[key, shapes]] = json.loads(file.read_text()).items()
    first = next(iter(shapes))
    damaged = {
        "number": {key: {**shapes, first: {"a": "fast", "b": 1}}},
        "shape": {key: {first: shapes[first]}},
        "path": {key: {**shapes, first: {"a": 1.0}}},
    }
    file.write_text(json.dumps(damaged[damage]) if damage in damaged else damage)
    assert PathSpeeds(file, measure).of(geometry(), names) == found
    assert measure.calls == 2
    assert PathSpeeds(file, measure).of(geometry(), names) == found
    assert measure.calls == 2, "and written again"


def test_a_memory_that_cannot_be_written_is_not_missed(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    measure = measured_as({})
    PathSpeeds(tmp_path / "file" / "speeds.json", measure).of(geometry(), ["a", "b"])
    assert measure.calls == 1


def test_a_real_measurement_has_a_figure_for_all(tmp_path: Path) -> None:
    small = Geometry(2, mx.float32, KVFormat(group_size=32), LayerGroup((0,), 1, 32, 32))
    figures = PathSpeeds(tmp_path / "speeds.json").of(small, [right_here, DEQUANTIZE_FUSED])
    assert set(figures) == set(MEASURED)
    assert all(seconds > 0 for each in figures.values() for seconds in each.values())

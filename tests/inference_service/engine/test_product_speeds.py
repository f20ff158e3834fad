"""Which way products of rows take: the fastest that is right, where it gains enough; measured once and remembered."""

import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import pytest
from mlx_lm.models.switch_layers import SwitchLinear

from inference_service.engine import product_speeds, products
from inference_service.engine.product_speeds import (
    CHUNK,
    STEP,
    Case,
    Figures,
    ProductSpeeds,
    careful,
    cases,
    choices,
    choose,
    fastest,
    measured,
    take,
)
from inference_service.engine.products import (
    CHUNK_ROWS,
    DEQUANTIZED,
    FLATTENED,
    GIVEN,
    PADDED,
    STEP_ROWS,
    Product,
    Shape,
    quantized_layers,
)

SMALL = Shape(64, 32, "affine", 4, 32, mx.float32)


class Network(nn.Module):  # type: ignore[misc]
    """Two layers of one shape, and one of another."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = [nn.Linear(64, 32), nn.Linear(64, 32), nn.Linear(32, 64)]
        nn.quantize(self, group_size=32, bits=4)

    def steps(self, layer: int) -> dict[int, str]:
        """Return a layer's way by a step's number of rows."""
        return {rows: self.layers[layer].products.step(rows) for rows in STEP_ROWS}

    def chunks(self, layer: int) -> dict[int, str]:
        return {rows: self.layers[layer].products.chunk(rows) for rows in CHUNK_ROWS}


@pytest.fixture
def by_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU, where decode steps have ways of their own."""
    monkeypatch.setattr(product_speeds, "on_cpu", lambda: False)


def seconds(way: str, rows: int) -> float:
    """Made up: 10 µs a row as given, 25 µs as one matrix, of which fewer rows than 8 are none, 400 µs dequantized."""
    match way:
        case "given":
            return 1e-5 * rows
        case "dequantized":
            return 4e-4
        case _:
            return 2e-5 * rows if way == FLATTENED and rows < 8 else 2.5e-5


class Measured:
    """A measurement with these figures."""

    def __init__(self) -> None:
        self.calls: list[tuple[Shape, int]] = []

    def __call__(self, shape: Shape, layers: Sequence[Any], wanted: Sequence[Case]) -> Figures:
        self.calls.append((shape, len(layers)))
        return {str(case): {way: seconds(way, case.rows) for way in case.ways(shape)} for case in wanted}


@pytest.mark.usefixtures("by_row")
def test_the_fastest_way_is_taken_by_shape_and_rows(tmp_path: Path) -> None:
    network, measure = Network(), Measured()
    reports = choose(network, mx.float32, ProductSpeeds(tmp_path / "products.json", measure))
    assert measure.calls == [(Shape(32, 64, "affine", 4, 32, mx.float32), 1), (SMALL, 2)]
    for layer in range(3):
        assert network.steps(layer) == {2: GIVEN, 4: PADDED, 8: FLATTENED, 16: FLATTENED, 32: FLATTENED}
        chunks = {rows: network.layers[layer].products.chunk(rows) for rows in (1, 16, 32, 33, 2048)}
        assert chunks == {1: GIVEN, 16: GIVEN, 32: GIVEN, 33: DEQUANTIZED, 2048: DEQUANTIZED}
    assert [(report.phase, report.path) for report in reports] == [
        ("products", way) for way in (PADDED, FLATTENED, DEQUANTIZED)
    ]
    assert all(report.relative_error < 1e-5 for report in reports)
    assert reports[0].note.startswith("32 to 64 by steps of 4 rows (25 µs, given 40 µs); 64 to 32 by steps of 4 rows")
    assert reports[1].note.startswith("32 to 64 by steps of 8, 16, 32 rows (25 µs, given 320 µs)")
    assert reports[2].note == "32 to 64 by chunks of 33 rows; 64 to 32 by chunks of 33 rows", "it is not measured"


def test_on_a_cpu_a_step_of_many_rows_is_as_a_chunk(tmp_path: Path) -> None:
    network = Network()
    choose(network, mx.float32, ProductSpeeds(tmp_path / "products.json", Measured()))
    for layer in range(3):
        assert network.chunks(layer) == {16: GIVEN, 64: DEQUANTIZED, 256: DEQUANTIZED}
        assert network.layers[layer].products.steps == network.layers[layer].products.chunks
        assert set(network.steps(layer).values()) == {GIVEN}


def test_what_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing on a GPU for which MLX would compile kernels that nothing else needs."""
    of_experts = SMALL._replace(experts=4)
    assert cases(of_experts) == cases(SMALL) == [Case(CHUNK, rows) for rows in CHUNK_ROWS]
    monkeypatch.setattr(product_speeds, "on_cpu", lambda: False)
    assert cases(SMALL) == [Case(STEP, rows) for rows in STEP_ROWS]
    assert cases(of_experts) == []
    assert Case(STEP, 4).ways(SMALL) == [GIVEN, FLATTENED, PADDED]
    assert Case(STEP, 8).ways(SMALL) == [GIVEN, FLATTENED], "no row is missing to a matrix"


@pytest.mark.usefixtures("by_row")
def test_experts_are_dequantized_on_a_gpu_from_16_rows_of_each_on(tmp_path: Path) -> None:
    network, measure = Network(), Measured()
    network.layers = [SwitchLinear(64, 32, 4).to_quantized(32, 4)]
    [report] = choose(network, mx.float32, ProductSpeeds(tmp_path / "products.json", measure))
    assert (report.path, report.note) == (DEQUANTIZED, "64 to 32 of 4 experts by chunks of 16 rows")
    assert network.layers[0].products.chunks == {16: DEQUANTIZED}
    assert report.relative_error < 1e-5


@pytest.mark.parametrize(("taken", "way"), [(0.89, FLATTENED), (0.91, GIVEN), (1.5, GIVEN)])
def test_a_way_that_gains_little_is_not_taken(taken: float, way: str) -> None:
    assert fastest({GIVEN: 1.0, FLATTENED: taken, PADDED: 2.0}) == way


def wrong(product: Product, x: mx.array) -> mx.array:
    return product(x)[::-1]


def fails(product: Product, x: mx.array) -> mx.array:
    raise ValueError("no implementation")


def nan(product: Product, x: mx.array) -> mx.array:
    return product(x) * mx.nan


def other_shape(product: Product, x: mx.array) -> mx.array:
    return product(x)[:, 0]


@pytest.mark.usefixtures("by_row")
@pytest.mark.parametrize("way", [wrong, fails, nan, other_shape])
def test_a_way_that_is_wrong_is_not_taken(
    way: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    file, network = tmp_path / "products.json", Network()
    choose(network, mx.float32, ProductSpeeds(file, Measured()))
    monkeypatch.setitem(products.WAYS, FLATTENED, way)
    with caplog.at_level(logging.WARNING):
        choose(network, mx.float32, ProductSpeeds(file, Measured()))
    assert network.steps(0) == {2: GIVEN, 4: PADDED, 8: GIVEN, 16: GIVEN, 32: GIVEN}
    assert f"step 8, 64 to 32, {FLATTENED}" in caplog.text
    monkeypatch.setitem(products.WAYS, PADDED, way)
    choose(network, mx.float32, ProductSpeeds(file, Measured()))
    assert set(network.steps(0).values()) == {GIVEN}


@pytest.mark.parametrize("shift", [1.0, float("nan")])
def test_dequantized_weights_that_are_wrong_are_not_taken(
    shift: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    network, original = Network(), products.dequantize
    choose(network, mx.float32, ProductSpeeds(tmp_path / "products.json", Measured()))
    assert DEQUANTIZED in network.chunks(0).values()
    monkeypatch.setattr(products, "dequantize", lambda *of: original(*of) + shift)
    reports = choose(network, mx.float32, ProductSpeeds(tmp_path / "products.json", Measured()))
    assert not reports
    assert set(network.chunks(0).values()) == {GIVEN}


@pytest.mark.usefixtures("by_row")
def test_choices_are_taken_again_from_json(tmp_path: Path) -> None:
    first, again, plain = Network(), Network(), Network()
    choose(first, mx.float32, ProductSpeeds(tmp_path / "products.json", Measured()))
    known = json.loads(json.dumps(choices(first, mx.float32)))
    again.update(first.parameters())
    take(again, mx.float32, known)
    x = mx.random.normal((1, 40, 64), key=mx.random.key(1))
    for one, other in zip(first.layers, again.layers, strict=True):
        assert (one.products.steps, one.products.chunks) == (other.products.steps, other.products.chunks)
    assert mx.array_equal(first.layers[0](x), again.layers[0](x))
    take(plain, mx.float32, choices(plain, mx.float32))
    assert [type(each) for each in plain.layers] == [type(each) for each in Network().layers], "none was chosen"
    for damaged in ({key: 3 for key in known}, {key: [{"x": "given"}, {}] for key in known}, 3):
        with pytest.raises((AttributeError, TypeError, ValueError)):
            take(plain, mx.float32, damaged)  # type: ignore[arg-type]


@pytest.mark.usefixtures("by_row")
def test_careful_products_need_no_comparison(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(product_speeds, "on_metal", lambda: True)
    on_metal = Network()
    careful(on_metal, mx.float32)
    assert choices(on_metal, mx.float32) == {}, "nothing would replace them"
    monkeypatch.setattr(product_speeds, "on_metal", lambda: False)
    network = Network()
    careful(network, mx.float32)
    assert {network.layers[0].products.chunk(rows) for rows in (1, 2, 33, 2048)} == {GIVEN, DEQUANTIZED}
    assert network.layers[0].products.chunk(1) == GIVEN
    cpu = Network()
    monkeypatch.setattr(product_speeds, "on_cpu", lambda: True)
    careful(cpu, mx.float32)
    assert cpu.chunks(0) == dict.fromkeys(CHUNK_ROWS, DEQUANTIZED) and cpu.layers[0].products.chunk(15) == GIVEN


@pytest.mark.usefixtures("by_row")
def test_a_way_that_fails_when_it_is_measured_is_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(products.WAYS, FLATTENED, fails)
    figures = measured(SMALL, quantized_layers(Network(), mx.float32)[SMALL], [Case(STEP, 8)])
    assert figures["step 8"][FLATTENED] == float("inf") > figures["step 8"][GIVEN]
    assert fastest(figures["step 8"]) == GIVEN
    assert "no implementation" in caplog.text
    file = tmp_path / "products.json"
    for _ in range(2):  # measured, and remembered
        assert not [each for each in choose(Network(), mx.float32, ProductSpeeds(file)) if each.path == FLATTENED]


def test_what_takes_long_is_measured_with_few_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(product_speeds, "_LONG", 0.0)
    wanted = [Case(STEP, 2), *(Case(CHUNK, rows) for rows in CHUNK_ROWS)]
    figures = measured(SMALL, quantized_layers(Network(), mx.float32)[SMALL], wanted)
    assert list(figures) == [str(case) for case in wanted]
    assert figures["chunk 16"] == figures["chunk 64"] == figures["chunk 256"] != figures["step 2"]


@pytest.mark.parametrize("damage", ["", "[]", "null", "number", "rows", "way"])
def test_a_damaged_memory_of_speeds_is_only_a_miss(damage: str, tmp_path: Path) -> None:
    file, measure = tmp_path / "products.json", Measured()
    layers = quantized_layers(Network(), mx.float32)[SMALL]
    wanted = [Case(STEP, rows) for rows in STEP_ROWS]
    found = ProductSpeeds(file, measure).of(SMALL, layers, wanted)
    [[key, known]] = json.loads(file.read_text()).items()
    damaged = {
        "number": {key: {**known, "step 2": dict.fromkeys(known["step 2"], "fast")}},
        "rows": {key: {"step 2": known["step 2"]}},
        "way": {key: {**known, "step 2": {GIVEN: 1.0}}},
    }
    file.write_text(json.dumps(damaged[damage]) if damage in damaged else damage)
    assert ProductSpeeds(file, measure).of(SMALL, layers, wanted) == found
    assert len(measure.calls) == 2
    assert ProductSpeeds(file, measure).of(SMALL, layers, wanted) == found
    assert len(measure.calls) == 2, "and written again"

"""Which way products of rows take: the fastest that is right, where it gains enough; measured once and remembered."""

import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import pytest

from inference_service.engine import products
from inference_service.engine.product_speeds import (
    Errors,
    Figures,
    ProductSpeeds,
    choose,
    fastest,
    measured,
    right_ways,
)
from inference_service.engine.products import FLATTENED, GIVEN, MEASURED, PADDED, Product, Shape, quantized_layers

SMALL = Shape(64, 32, "affine", 4, 32, mx.float32)


class Network(nn.Module):  # type: ignore[misc]
    """Two layers of one shape, and one of another."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = [nn.Linear(64, 32), nn.Linear(64, 32), nn.Linear(32, 64)]
        nn.quantize(self, group_size=32, bits=4)

    def ways(self, layer: int) -> dict[int, str]:
        """What a layer takes for numbers of rows."""
        return {rows: self.layers[layer].products.at(rows) for rows in MEASURED}


def seconds(way: str, rows: int) -> float:
    """Made up: 10 µs a row as given, 25 µs as one matrix, of which fewer rows than 8 are none."""
    if way == GIVEN:
        return 1e-5 * rows
    return 2e-5 * rows if way == FLATTENED and rows < 8 else 2.5e-5


class Measured:
    """A measurement with these figures."""

    def __init__(self) -> None:
        self.calls: list[tuple[Shape, int]] = []

    def __call__(self, shape: Shape, layers: Sequence[Any], right: Errors) -> Figures:
        self.calls.append((shape, len(layers)))
        return {rows: {way: seconds(way, rows) for way in right[rows]} for rows in right}


def test_the_fastest_way_is_taken_by_shape_and_rows(tmp_path: Path) -> None:
    network, measure = Network(), Measured()
    reports = choose(network, mx.float32, ProductSpeeds(tmp_path / "products.json", measure))
    assert measure.calls == [(Shape(32, 64, "affine", 4, 32, mx.float32), 1), (SMALL, 2)]
    for layer in range(3):
        assert network.ways(layer) == {2: GIVEN, 4: PADDED, 8: FLATTENED, 16: FLATTENED, 32: FLATTENED}
    assert [(report.phase, report.path) for report in reports] == [("products", PADDED), ("products", FLATTENED)]
    assert all(report.relative_error < 1e-5 for report in reports)
    assert reports[0].note.startswith("32 to 64 by 4 rows (25 µs, given 40 µs); 64 to 32 by 4 rows")
    assert reports[1].note.startswith("32 to 64 by 8, 16, 32 rows (25 µs, given 320 µs)")


@pytest.mark.parametrize(("taken", "way"), [(0.89, FLATTENED), (0.91, GIVEN), (1.5, GIVEN)])
def test_a_way_that_gains_little_is_not_taken(taken: float, way: str) -> None:
    assert fastest({GIVEN: 1.0, FLATTENED: taken, PADDED: 2.0}) == way


def test_nothing_is_said_where_all_is_computed_as_given(tmp_path: Path) -> None:
    def slow(shape: Shape, layers: Sequence[Any], right: Errors) -> Figures:
        return {rows: {way: float(way != GIVEN) + 1 for way in right[rows]} for rows in right}

    network = Network()
    assert not choose(network, mx.float32, ProductSpeeds(tmp_path / "products.json", slow))
    assert set(network.ways(0).values()) == {GIVEN}


def wrong(product: Product, x: mx.array) -> mx.array:
    return product(x)[::-1]


def fails(product: Product, x: mx.array) -> mx.array:
    raise ValueError("no implementation")


def nan(product: Product, x: mx.array) -> mx.array:
    return product(x) * mx.nan


def other_shape(product: Product, x: mx.array) -> mx.array:
    return product(x)[:, 0]


@pytest.mark.parametrize("way", [wrong, fails, nan, other_shape])
def test_a_way_that_is_wrong_is_not_taken(
    way: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """However fast it is said to be; and where it was right when it was measured."""
    file, network = tmp_path / "products.json", Network()
    choose(network, mx.float32, ProductSpeeds(file, Measured()))
    monkeypatch.setitem(products.WAYS, FLATTENED, way)
    with caplog.at_level(logging.WARNING):
        choose(network, mx.float32, ProductSpeeds(file, Measured()))
    assert network.ways(0) == {2: GIVEN, 4: PADDED, 8: GIVEN, 16: GIVEN, 32: GIVEN}
    assert f"8 rows, 64 to 32, {FLATTENED}" in caplog.text
    monkeypatch.setitem(products.WAYS, PADDED, way)
    choose(network, mx.float32, ProductSpeeds(file, Measured()))
    assert set(network.ways(0).values()) == {GIVEN}


def test_products_that_cannot_be_computed_as_given_have_no_choice() -> None:
    layer = Network().layers[0]
    layer.scales = mx.full(layer.scales.shape, mx.nan)
    assert not right_ways(SMALL, layer)


def test_speed_is_measured_once_per_shape(tmp_path: Path) -> None:
    file, measure = tmp_path / "worker" / "products.json", Measured()
    first, second = Network(), Network()
    for network in (first, second):
        choose(network, mx.float32, ProductSpeeds(file, measure))
    assert len(measure.calls) == 2
    assert first.ways(0) == second.ways(0) != dict.fromkeys(MEASURED, GIVEN)
    choose(second, mx.float16, ProductSpeeds(file, measure))
    assert len(measure.calls) == 4, "another dtype is measured anew"


@pytest.mark.parametrize("damage", ["", "[]", "null", "number", "rows", "way"])
def test_a_damaged_memory_of_speeds_is_only_a_miss(damage: str, tmp_path: Path) -> None:
    file, measure = tmp_path / "products.json", Measured()
    layers = quantized_layers(Network(), mx.float32)[SMALL]
    right = right_ways(SMALL, layers[0])
    found = ProductSpeeds(file, measure).of(SMALL, layers, right)
    [[key, known]] = json.loads(file.read_text()).items()
    damaged = {
        "number": {key: {**known, "2": dict.fromkeys(known["2"], "fast")}},
        "rows": {key: {"2": known["2"]}},
        "way": {key: {**known, "2": {GIVEN: 1.0}}},
    }
    file.write_text(json.dumps(damaged[damage]) if damage in damaged else damage)
    assert ProductSpeeds(file, measure).of(SMALL, layers, right) == found
    assert len(measure.calls) == 2
    assert ProductSpeeds(file, measure).of(SMALL, layers, right) == found
    assert len(measure.calls) == 2, "and written again"


def test_a_real_measurement_has_a_figure_for_all(tmp_path: Path) -> None:
    layers = quantized_layers(Network(), mx.float32)[SMALL]
    right = {rows: errors for rows, errors in right_ways(SMALL, layers[0]).items() if rows < 16}
    figures = measured(SMALL, layers, right)
    assert {rows: set(each) for rows, each in figures.items()} == {
        2: {GIVEN, FLATTENED, PADDED},
        4: {GIVEN, FLATTENED, PADDED},
        8: {GIVEN, FLATTENED},
    }
    assert all(figure > 0 for each in figures.values() for figure in each.values())

"""Faults of passes of several rows, of every architecture: each is found."""

from collections.abc import Iterator
from pathlib import Path

import mlx.core as mx
import pytest

from inference_service.engine.paged.passes import Pass
from inference_service.engine.paged.sequence import States, WorkingKV
from inference_service.models.loaded import LoadedModel
from tests.inference_service.engine.batch_rows import (
    POSITIONED,
    RECURRENT,
    SLIDING,
    TOLERANCE,
    WITH_KV,
    WRITERS,
    Fault,
    begun,
    differences,
    inject,
    names,
    swapped_rows,
)
from tests.oracle import Oracle
from tests.tiny_models import write_llama

pytestmark = pytest.mark.sampled(4)

FAULTY = {0: 0, 1: 0, 2: 0, 3: 2}


@pytest.fixture(scope="module", params=WRITERS, ids=names(WRITERS))
def directory(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    made: Path = request.param(tmp_path_factory.mktemp("model"))
    return made


def arrays(of: Pass) -> Iterator[WorkingKV]:
    for sequence, _ in of.pieces:
        yield from sequence.working.values()


def one_position_off(of: Pass) -> None:
    """RoPE: every row believes to be one token further."""
    of.offset = of.offset + 1


def stale(of: Pass) -> None:
    """The newest tokens of every layer are those of some steps before."""
    for working in arrays(of):
        end = working.filled
        for array in working._arrays:
            array[:, :, end - 8 : end] = array[:, :, end - 16 : end - 8] + 0


def stale_window(of: Pass) -> None:
    for working in arrays(of):
        if working.window:
            end = working.filled
            for array in working._arrays:
                array[:, :, end - 8 : end] = array[:, :, end - 16 : end - 8] + 0


def swapped_states(of: Pass) -> None:
    """A row goes on from its neighbour's state."""
    one, other = of.pieces[0].sequence, of.pieces[-1].sequence
    (one.states, one.row), (other.states, other.row) = (other.states, other.row), (one.states, one.row)


def short_convolutions(of: Pass) -> None:
    """Of the tokens that a convolution sees, the first are gone."""
    for sequence, _ in of.pieces:
        if sequence.states is not None:
            layers = sequence.states.rows([sequence.row]).layers
            for layer in layers:
                first = layer[0]
                assert first is not None
                layer[0] = mx.concatenate([mx.zeros_like(first[:, :1]), first[:, 1:]], axis=1)
            sequence.states, sequence.row = States(layers), 0


def found_out(model: LoadedModel, oracle: Oracle, fault: Fault) -> bool:
    """By what rows are told, or because a pass failed."""
    with pytest.MonkeyPatch.context() as patch:
        faulted = inject(model, patch, fault)
        rows = begun(model, FAULTY)
    assert faulted, "the fault was met, and raised nothing itself"
    return any(row.job.alone for row in rows.values()) or max(differences(oracle, rows)) > 10 * TOLERANCE


@pytest.mark.parametrize("directory", [write_llama], ids=["llama"], indirect=True)
def test_where_nothing_is_wrong_no_fault_is_found(model: LoadedModel, oracle: Oracle) -> None:
    assert not found_out(model, oracle, lambda _: None)


@pytest.mark.parametrize("directory", POSITIONED, ids=names(POSITIONED), indirect=True)
def test_wrong_positions_are_found(model: LoadedModel, oracle: Oracle) -> None:
    assert found_out(model, oracle, one_position_off)


@pytest.mark.slow("qwen3_next-stale", "jamba-swapped_rows")
@pytest.mark.parametrize("fault", [swapped_rows, stale])
@pytest.mark.parametrize("directory", WITH_KV, ids=names(WITH_KV), indirect=True)
def test_injected_faults_are_found(model: LoadedModel, oracle: Oracle, fault: Fault) -> None:
    assert found_out(model, oracle, fault)


@pytest.mark.parametrize("fault", [swapped_states, short_convolutions])
@pytest.mark.parametrize("directory", RECURRENT, ids=names(RECURRENT), indirect=True)
def test_a_state_of_another_is_found(model: LoadedModel, oracle: Oracle, fault: Fault) -> None:
    assert found_out(model, oracle, fault)


@pytest.mark.parametrize("directory", RECURRENT, ids=names(RECURRENT), indirect=True)
def test_a_state_of_a_token_before_is_found(model: LoadedModel, oracle: Oracle) -> None:
    before: dict[int, tuple[States | None, int]] = {}

    def stale_states(of: Pass) -> None:
        for sequence, _ in of.pieces:
            if id(sequence) in before:
                sequence.states, sequence.row = before[id(sequence)]
            before[id(sequence)] = sequence.states, sequence.row

    assert found_out(model, oracle, stale_states)


@pytest.mark.parametrize("directory", SLIDING, ids=names(SLIDING), indirect=True)
def test_a_stale_window_is_found(model: LoadedModel, oracle: Oracle) -> None:
    assert found_out(model, oracle, stale_window)

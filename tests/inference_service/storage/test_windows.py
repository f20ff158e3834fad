"""A hybrid model that goes on from files: blocks of its full layers, and a window, trimmed or not."""

from pathlib import Path

import numpy as np
import pytest

from agentmem.kv.ledger import Ledger
from benchmarks.loading import load
from inference_service.engine.geometry import HostTensors
from inference_service.engine.paged.sequence import Sequence
from inference_service.engine.paged.store import Start
from inference_service.memory.checkpoints import (
    CheckpointCandidate,
    checkpoint_candidates,
    checkpoint_headers,
    choose_checkpoint,
)
from inference_service.memory.restore import headers
from inference_service.models.fingerprint import ContentHashes
from inference_service.models.loaded import LoadedModel
from inference_service.storage.blocks import read_block, write_block
from tests.inference_service.directories import written_by
from tests.inference_service.engine.batch_turns import Beginning, Room, Turn, begin, right, run
from tests.oracle import Oracle
from tests.tiny_models import write_gemma3, write_gpt_oss

WINDOW, POSITION = 64, 500
TEXT = "The colour of the boat is green. Nobody knows who told you. " * 40


directory = written_by([write_gemma3, write_gpt_oss])


@pytest.fixture(scope="module")
def model(directory: Path, tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    return load("tiny", str(directory), hashes=ContentHashes(tmp_path_factory.mktemp("hashes") / "weights.json"))


@pytest.fixture(scope="module")
def oracle(directory: Path) -> Oracle:
    return Oracle(directory)


@pytest.fixture(scope="module")
def files(model: LoadedModel, tmp_path_factory: pytest.TempPathFactory) -> tuple[list[HostTensors], HostTensors, int]:
    """Return the blocks and the window read back from files, written after POSITION tokens."""
    folder, geometry, tokens = tmp_path_factory.mktemp("files"), model.geometry, sequence(model)[:POSITION]
    turn = begin(model, tokens, tokens=None)
    run(model)
    checkpoint = model.arenas.capture(turn.kv)
    assert checkpoint is not None
    assert checkpoint.position == POSITION
    stored = checkpoint.tokens
    saved = [
        (header, model.arenas.read_block(block, header.token_count)())
        for header, block in zip(headers(model.fingerprint, "ns", tokens), turn.kv.full.blocks, strict=False)
    ]
    window = model.arenas.read_checkpoint(checkpoint)()
    saved += [(header, window) for header in checkpoint_headers(model.fingerprint, "ns", tokens, {POSITION: stored})]
    read = []
    for index, (header, tensors) in enumerate(saved):
        path = str(folder / f"{index}.safetensors")
        digest, _ = write_block(path, header, tensors, geometry)
        read.append(read_block(path, header, digest, geometry))
    return read[:-1], read[-1], stored


def sequence(model: LoadedModel) -> list[int]:
    return model.tokenizer.encode(TEXT, parse_special=False)[: POSITION + 40]


def resumed(
    model: LoadedModel, files: tuple[list[HostTensors], HostTensors, int], resume: int, prompt: list[int]
) -> Turn:
    """A turn that goes on from `resume` tokens of the files, as a restorer has it begin."""
    blocks, window, _ = files
    room = Room(model, len(prompt) + 9)
    needed = list(zip(room.blocks, blocks[: -(-resume // 256)], strict=False))
    start = Start(room.blocks, room.pieces, resume, files=needed, window_file=window, window_surplus=POSITION - resume)
    began: list[int] = []
    beginning = Beginning(model, room, start)

    def noted() -> Sequence:
        sequence = beginning()
        began.append(sequence.length)
        return sequence

    turn = begin(model, prompt, 8, make=noted)
    run(model)
    assert began == [resume]
    assert turn.whole
    return turn


@pytest.mark.slow("gpt_oss-500")
@pytest.mark.parametrize("shared", [POSITION + 30, POSITION, POSITION - 1, POSITION - 256])
def test_what_goes_on_from_files_equals_recomputation(
    model: LoadedModel,
    oracle: Oracle,
    files: tuple[list[HostTensors], HostTensors, int],
    shared: int,
) -> None:
    tokens = sequence(model)
    stored = files[2]
    assert stored == WINDOW + 256
    ledger = Ledger().followed_by(tokens[:POSITION], [b"x"] * POSITION, "h", 0)
    prompt = tokens if shared > POSITION else [*tokens[:shared], *reversed(tokens[:50])]
    found = checkpoint_candidates(model.fingerprint, "ns", ledger, min(shared, POSITION), prompt, ())
    chosen = choose_checkpoint(found, {c.name: stored for c in found}, WINDOW, POSITION)
    assert chosen is not None
    assert chosen[1] == min(shared, POSITION)
    assert right(oracle, resumed(model, files, chosen[1], prompt))


def test_what_a_file_does_not_have_is_in_no_later_checkpoint(
    model: LoadedModel, files: tuple[list[HostTensors], HostTensors, int]
) -> None:
    """In the first block of a window, before the file's tokens, is what others left there."""
    turn = resumed(model, files, POSITION - 100, sequence(model)[: POSITION - 90])
    checkpoint = model.arenas.capture(turn.kv)
    assert checkpoint is not None
    assert checkpoint.position == POSITION - 90 + 8
    assert checkpoint.position - checkpoint.tokens == POSITION - files[2]
    found = model.arenas.read_checkpoint(checkpoint)()
    scales = [np.frombuffer(data, np.float32) for name, data in found.items() if name.endswith("scales")]
    assert len(scales) == 2
    assert not any(np.isnan(each).any() for each in scales)


def test_one_token_further_back_is_refused_and_cannot_be_computed(
    model: LoadedModel, files: tuple[list[HostTensors], HostTensors, int]
) -> None:
    """The rule is needed: with a few tokens of the window missing, there is less than what attention sees."""
    candidate = CheckpointCandidate(POSITION, b"", b"", POSITION - 257)
    assert choose_checkpoint([candidate], {b"": files[2]}, WINDOW, POSITION) is None
    resume = POSITION - 256 - 8
    prompt = [*sequence(model)[:resume], *reversed(sequence(model)[:50])]
    with pytest.raises(ValueError, match="cannot be broadcast"):
        resumed(model, files, resume, prompt)

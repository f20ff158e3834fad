"""A hybrid model that goes on from files: blocks of its full layers, and a window, trimmed or not."""

import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from inference_service.engine.checkpoints import space_of

from agentmem.kv.ledger import Ledger
from benchmarks.loading import load
from inference_service.domain import Sampling, TokenEvent
from inference_service.engine.generation import Decoding, TurnJob
from inference_service.engine.geometry import Caches, HostTensors
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
from tests.oracle import Oracle
from tests.tiny_models import write_gemma3, write_gpt_oss

WINDOW, POSITION = 64, 500
TEXT = "The colour of the boat is green. Nobody knows who told you. " * 40


@pytest.fixture(scope="module", params=[write_gemma3, write_gpt_oss], ids=["gemma3", "gpt_oss"])
def directory(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    write: Callable[[Path], Path] = request.param
    return write(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def model(directory: Path, tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    return load("tiny", str(directory), hashes=ContentHashes(tmp_path_factory.mktemp("hashes") / "weights.json"))


@pytest.fixture(scope="module")
def oracle(directory: Path) -> Oracle:
    return Oracle(directory)


@pytest.fixture(scope="module")
def files(model: LoadedModel, tmp_path_factory: pytest.TempPathFactory) -> tuple[list[HostTensors], HostTensors, int]:
    """What is read back of the blocks and the window that were written after POSITION tokens."""
    folder, geometry, tokens = tmp_path_factory.mktemp("files"), model.geometry, sequence(model)[:POSITION]
    caches = model.new_caches()
    run(model, caches, tokens, generated=0)
    stored, count = space_of(caches, geometry)
    blocks = list(headers(model.fingerprint, "ns", tokens))
    pieces = list(range(count))
    model.arenas.write(caches, 0, [1, 0], pieces)
    saved = [
        (header, model.arenas.read_block(block, header.token_count))
        for header, block in zip(blocks, [1, 0], strict=True)
    ]
    window = model.arenas.sliding.read(pieces, stored)
    saved += [(header, window) for header in checkpoint_headers(model.fingerprint, "ns", tokens, {POSITION: stored})]
    read = []
    for index, (header, tensors) in enumerate(saved):
        path = str(folder / f"{index}.safetensors")
        digest, _ = write_block(path, header, tensors, geometry)
        read.append(read_block(path, header, digest, geometry))
    return read[:-1], read[-1], stored


def sequence(model: LoadedModel) -> list[int]:
    return model.tokenizer.encode(TEXT, parse_special=False)[: POSITION + 40]


def run(model: LoadedModel, caches: Caches, tokens: list[int], generated: int) -> list[TokenEvent]:
    """Prefill what the caches lack and generate."""
    events: list[TokenEvent] = []
    decoding = Decoding(generated, sampling=Sampling(ignore_eos=True), top_logprobs=0) if generated else None
    job = TurnJob(tokens, lambda: caches, decoding, events.append, threading.Event())
    model.engine.add(job)
    while model.engine.step():
        pass
    job.future.result(0)
    return events


def resumed(model: LoadedModel, files: tuple[list[HostTensors], HostTensors, int], resume: int) -> Caches:
    """Caches of `resume` tokens, as a restorer makes them."""
    blocks, window, _ = files
    needed = blocks[: -(-resume // 256)]
    return model.arenas.caches(resume, [], needed, model.arenas.uploaded(window, POSITION - resume, resume))


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
    caches = resumed(model, files, chosen[1])
    assert {cache.offset for cache in caches} == {chosen[1]}
    events = run(model, caches, prompt, generated=8)
    wanted = oracle.logprobs_of([*prompt, *(e.token_id for e in events)], len(prompt))
    assert np.abs(wanted - np.array([e.logprob for e in events])).max() < 1e-3


def test_one_token_further_back_is_refused_and_would_be_wrong(
    model: LoadedModel, oracle: Oracle, files: tuple[list[HostTensors], HostTensors, int]
) -> None:
    """What the rule is for: with a few tokens of the window missing, the comparison above fails."""
    candidate = CheckpointCandidate(POSITION, b"", b"", POSITION - 257)
    assert choose_checkpoint([candidate], {b"": files[2]}, WINDOW, POSITION) is None
    resume = POSITION - 256 - 8
    prompt = [*sequence(model)[:resume], *reversed(sequence(model)[:50])]
    events = run(model, resumed(model, files, resume), prompt, generated=8)
    wanted = oracle.logprobs_of([*prompt, *(e.token_id for e in events)], len(prompt))
    assert np.abs(wanted - np.array([e.logprob for e in events])).max() > 1e-3

"""A turn that begins again, because a step of it failed, writes to nothing that others have found meanwhile."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agentmem.kv.blockfile import BLOCK_TOKENS, NO_PARENT, BlockHeader
from benchmarks.loading import load
from inference_service.engine.paged.arena import HostArena
from inference_service.memory.restore import Candidate, Choice
from inference_service.models.fingerprint import ContentHashes
from inference_service.models.loaded import LoadedModel
from inference_service.pool.admission import Reservation
from inference_service.turns.prompt_sharing import PromptSharing
from inference_service.turns.restored import Restored
from tests.inference_service.turns.world import prompt, working
from tests.tiny_hybrids import write_falcon_h1
from tests.tiny_models import write_gemma3, write_llama


@pytest.fixture(scope="module", params=[write_gemma3, pytest.param(write_falcon_h1, marks=pytest.mark.slow)])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    path = request.param(tmp_path_factory.mktemp("model"))
    return load("tiny", str(path), hashes=ContentHashes(tmp_path_factory.mktemp("hashes") / "hashes.json"))


def test_pieces_that_others_find_are_not_its_own_any_more(model: LoadedModel) -> None:
    each = model.geometry.checkpoint_pieces
    room = Reservation(1024, places=(0, 1, 2, 3), pieces=list(range(3 * each)))
    room.given, room.named = {0, 2}, 2
    sequence = Restored(model, room=room).sequence()
    assert sequence.shared == 2 * BLOCK_TOKENS
    own = {*sequence.slots, *(sequence.window.spare if sequence.window is not None else ())}
    assert own.isdisjoint(room.given)
    assert len(own) == 3 * each - 2


@pytest.mark.parametrize("named", [0, 1])
def test_a_cut_block_is_copied_only_to_a_block_that_is_not_complete(model: LoadedModel, named: int) -> None:
    header = BlockHeader("f", "n", bytes(32), NO_PARENT, 0, BLOCK_TOKENS)
    room = Reservation(1024, places=(0, 1, 2, 3), pieces=list(range(model.geometry.checkpoint_pieces)), named=named)
    found = Restored(model, blocks={header.chain_hash: 4}, choice=Choice([Candidate(header, 100)]), room=room)
    arena = model.arenas.full
    assert isinstance(arena, HostArena)
    arena.take([0, 4])
    arena.words(0)[:], arena.words(4)[:] = 1, 2
    found.sequence()
    assert set(arena.words(0).tolist()) == {1 if named else 2}


@pytest.mark.slow
@pytest.mark.parametrize("fault", [False, True], ids=["right", "fault"])
async def test_blocks_that_others_find_are_not_written_again(
    fault: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They hold anything when the turn begins again, and so they do when it is over: it has not read them, either."""
    if fault:
        monkeypatch.setattr(PromptSharing, "_keep", lambda self, kept: self.engine.tell(self._name, kept))
    async with working(write_llama(tmp_path / "llama"), tmp_path, blocks=24) as worker:
        engine, arena = worker.model.engine, worker.model.arenas.full
        assert isinstance(arena, HostArena)
        original, blocks = engine._take, dict[int, Any]()

        def failing(flight: Any) -> None:
            [job] = flight.jobs
            if blocks or len(job.result.token_ids) < 3:
                original(flight)
                return
            for block in job.kv.full.blocks[:4]:
                blocks[block] = ~arena.words(block)
                arena.words(block)[:] = blocks[block]
            raise RuntimeError("a step that fails")

        monkeypatch.setattr(engine, "_take", failing)
        answer = await worker.turn("a", prompt(1100), 6)
        assert len(answer.token_ids) == 6
        assert len(blocks) == 4
        assert all(np.array_equal(arena.words(block), words) for block, words in blocks.items()) == (not fault)
        await worker.idle()

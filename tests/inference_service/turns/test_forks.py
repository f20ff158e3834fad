"""Forks by content: where a prompt leaves what another agent has in the middle of a block, it has all up to there."""

from collections.abc import Callable
from pathlib import Path

import pytest

from agentmem.kv.ledger import Version
from agentmem.v1 import types_pb2
from agentmem.validation import AgentKey
from inference_service.memory import restore
from tests.inference_service.turns.world import TOLERANCE, Worker, difference, prompt, working
from tests.tiny_models import write_gemma3, write_llama

HOT, WARM = types_pb2.TIER_HOT, types_pb2.TIER_WARM


def bits(worker: Worker, agent: str, block: int, tokens: int) -> dict[str, bytes]:
    """Return pooled KV of the first tokens of an agent's block."""
    state = worker.model.memory.hot.get(AgentKey("n", agent, "m"))
    assert state is not None
    return worker.model.arenas.read_block(state.table.blocks[block], tokens)()


async def evict(worker: Worker) -> None:
    """Leave nothing in the pool, all in files."""
    await worker.idle()
    for key in list(worker.model.memory.hot):
        worker.model.memory.hot.drop(key)
    assert worker.model.memory.pool.full.used == 0


@pytest.mark.slow
@pytest.mark.parametrize("warm", [False, True], ids=["hot", "warm"])
@pytest.mark.parametrize(("length", "left"), [(200, 100), (400, 330), (400, 256 + 64)])
async def test_all_up_to_the_first_token_that_differs_is_reused(
    llama: Path, tmp_path: Path, length: int, left: int, warm: bool
) -> None:
    """And nothing else: the answer is a recomputation's, the copy has the same bits, and the old branch is unharmed."""
    async with working(llama, tmp_path, blocks=8) as worker:
        ids = prompt(length)
        first = await worker.turn("a", ids)
        await worker.idle()
        block, within = left // 256, left % 256
        call = worker.engine.call
        before = await call(lambda: bits(worker, "a", block, (length + 4) % 256))
        own = await call(lambda: bits(worker, "a", block, within))
        if warm:
            await evict(worker)
        edited = [*ids[:left], *prompt(40, 1)]
        assert edited[left] != ids[left]
        other = await worker.turn("b", edited)
        assert {(each.tier, each.tokens) for each in other.started.cache.cached} == {(WARM if warm else HOT, left)}
        assert difference(llama, edited, other) < TOLERANCE
        await worker.idle()
        assert await call(lambda: bits(worker, "b", block, within)) == own
        back = [*ids, *first.token_ids, *prompt(5, 2)]
        again = await worker.turn("a", back)
        assert again.reused == length + 4, "the old branch has lost nothing"
        assert difference(llama, back, again) < TOLERANCE
        await worker.idle()
        assert await call(lambda: bits(worker, "a", block, (length + 4) % 256)) == before, (
            "and nothing has changed in it"
        )


async def test_a_branch_of_which_the_pool_has_a_part_is_taken_from_files(llama: Path, tmp_path: Path) -> None:
    """The whole block is hot, of another agent, and the one that is left in its middle is on disk."""
    async with working(llama, tmp_path, blocks=8) as worker:
        ids = prompt(400)
        await worker.turn("a", ids)
        await evict(worker)
        await worker.turn("c", [*ids[:256], 7, 8, 9])
        await worker.idle()
        edited = [*ids[:330], *prompt(40, 1)]
        other = await worker.turn("b", edited)
        assert [(each.tier, each.tokens) for each in other.started.cache.cached] == [(HOT, 256), (WARM, 74)]
        assert difference(llama, edited, other) < TOLERANCE


@pytest.mark.slow
async def test_an_agent_that_has_all_of_its_own_does_not_ask(llama: Path, tmp_path: Path) -> None:
    """New tokens follow, and one more call of the store in every turn would find nothing."""
    async with working(llama, tmp_path) as worker:
        ids = prompt(100)
        first = await worker.turn("a", ids)

        async def find_block(*_: object) -> None:
            pytest.fail("the store was asked")

        worker.store.find_block = find_block  # type: ignore[assignment]
        assert (await worker.turn("a", [*ids, *first.token_ids, *prompt(40, 1)])).reused == 104


async def test_a_token_too_many_would_be_noticed(llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fault that these tests are against, built in: KV of a token that the prompt does not have."""
    true = restore.shared_tokens
    monkeypatch.setattr(restore, "shared_tokens", lambda a, b: true(a, b) + 1)
    async with working(llama, tmp_path, blocks=8) as worker:
        ids = prompt(400)
        await worker.turn("a", ids)
        await worker.idle()
        edited = [*ids[:330], *prompt(40, 1)]
        other = await worker.turn("b", edited)
        assert other.reused == 331
        assert difference(llama, edited, other) > TOLERANCE


@pytest.mark.parametrize("kept", [None, 500], ids=["forked", "trimmed"])
@pytest.mark.parametrize("write", [write_llama, write_gemma3], ids=["llama", "gemma3"])
async def test_another_head_of_a_ledger_finds_the_kv_in_the_pool(
    tmp_path: Path, write: Callable[[Path], Path], kept: int | None
) -> None:
    """And the checkpoints on disk that it has in common with its state stay its own."""
    (tmp_path / "m").mkdir()
    directory, parent = write(tmp_path / "m"), AgentKey("n", "a", "m")
    async with working(directory, tmp_path, blocks=12, checkpoints=10) as worker:
        said = [*(ids := prompt(500)), *(await worker.turn("a", ids)).token_ids, *prompt(100, 1)]
        said += (await worker.turn("a", said)).token_ids
        await worker.idle()
        hot, (version, ledger) = worker.model.memory.hot, worker.store.ledgers[parent]
        state = hot.get(parent)
        assert state is not None
        key = parent if kept else parent._replace(agent_id="b")
        moved = Version(version.uid, version.number + 1) if kept else Version("b", 1)
        worker.store.ledgers[key] = moved, ledger.kept(kept or len(ledger))
        next_ids = [*said[:kept], *prompt(10, 2)]
        turn = await worker.turn(key.agent_id, next_ids)
        assert {each.tier for each in turn.started.cache.cached} == {HOT}
        assert turn.reused == (256 if kept and write is write_gemma3 else len(next_ids) - 10)
        assert difference(directory, next_ids, turn) < TOLERANCE
        await worker.idle()
        after = hot.get(key)
        assert after is not None
        assert write is write_llama or after.windows.keys() & state.windows.keys()

"""A backup of store.db is restored under a worker that goes on: numbers of versions come back with other content.

The worker has KV and ledger of what was lost in memory. It must use neither.
"""

import shutil
import signal
from pathlib import Path

import grpc
import numpy as np
import pytest

from agentmem.channels import connect
from agentmem.errors import Aborted
from agentmem.kv.ledger import Ledger, Version
from agentmem.v1 import cache_store_pb2 as pb
from agentmem.v1 import types_pb2
from inference_service.storage.client import StoreClient
from tests.oracle import Oracle
from tests.system.client import Client
from tests.system.recomputed import ARGUMENTS, check
from tests.system.stack import Stack, running


def continuation(client: Client, base: Version, held: int, ledger: Ledger) -> pb.CommitTurnRequest:
    start = ledger.text_end(held)
    return pb.CommitTurnRequest(
        key=client.key("a"),
        base=base.to_proto(),
        keep_tokens=held,
        token_ids=ledger.token_ids[held:].tolist(),
        text=ledger.text[start:],
        offsets=(ledger.offsets[held:] - np.uint32(start)).tolist(),
        tokenizer_hash=ledger.tokenizer_hash,
    )


async def a_number_comes_back(stack: Stack, oracle: Oracle) -> None:
    """The agent's turn after the backup is lost, another worker makes a version of its number, and ours goes on."""
    client = await stack.client()
    kept = await client.say("a", "The colour of the boat is green. " * 20, **ARGUMENTS)
    held = len((await stack.ledger("a")).token_ids)
    await client.fork("a", "b")
    await client.say("b", "But the house is white, and it stands by the sea. " * 12, **ARGUMENTS)
    other = Ledger.from_proto(await stack.ledger("b"))
    stack.kill("store", number=signal.SIGTERM)
    backup = Path(shutil.copy(stack.data / "store.db", stack.root / "backup.db"))
    await stack.renew()
    lost = await client.say("a", "The house is red, and nobody lives there. " * 10, **ARGUMENTS)
    await stack.on_disk("a")
    assert (await client.agent("a")).tier == types_pb2.TIER_HOT
    stack.kill("store", number=signal.SIGTERM)
    shutil.copy(backup, stack.data / "store.db")
    await stack.renew()

    base, gone = Version.from_proto(kept.finished.version), Version.from_proto(lost.finished.version)
    async with connect(f"unix:{stack.run}/store.sock") as channel:
        store = StoreClient(channel)
        made, _ = await store.commit(continuation(client, base, held, other))
        assert made[:2] == gone[:2] and made.revision != gone.revision
        with pytest.raises(Aborted, match="a backup was restored"):
            await store.commit(continuation(client, gone, held, other))

    turn = await client.say("a", "What do you know?", **ARGUMENTS)
    assert turn.started.base == made.to_proto()
    assert (await check(stack, oracle, turn))[: len(other)] == other.token_ids.tolist()


@pytest.mark.slow
async def test_what_was_lost_is_neither_used_nor_continued(tiny: Path) -> None:
    async with running(f"tiny={tiny}") as stack:
        await a_number_comes_back(stack, Oracle(tiny))


@pytest.mark.slow
async def test_a_worker_that_compares_numbers_is_found(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAULT", "by_number")
    async with running(f"tiny={tiny}", worker_module="tests.system.faulty_worker") as stack:
        with pytest.raises((AssertionError, grpc.aio.AioRpcError)):
            await a_number_comes_back(stack, Oracle(tiny))

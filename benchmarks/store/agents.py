"""Agents for the store's benchmark: turns of random tokens whose text is as long as English, and rows of files."""

import os
import sqlite3
import time
from contextlib import ExitStack
from functools import cache, partial
from pathlib import Path

import numpy as np

from agentmem.kv import blockfile
from agentmem.kv.blockfile import FileKind, FileName
from agentmem.kv.ledger import NO_VERSION, Ledger, TurnPlace, Version
from agentmem.v1 import cache_store_pb2 as pb
from agentmem.v1 import types_pb2
from agentmem.validation import AgentKey
from cache_service.files import holding, references, warm_database
from cache_service.files.directory import DataDirectory
from cache_service.files.holding import Standing
from cache_service.files.references import FileRow
from cache_service.ledger import turns
from cache_service.ledger.agents import Conversation
from cache_service.ledger.clock import Moment
from cache_service.ledger.database import Database

FINGERPRINT = "0" * 64
NAMESPACE, MODEL = "default", "benchmark"
_PER_TRANSACTION = 100
_BYTES_PER_TOKEN = 4
_SIZE = 4096


def key(agent: str) -> types_pb2.AgentKey:
    """The key of a benchmark's agent."""
    return types_pb2.AgentKey(namespace=NAMESPACE, agent_id=agent, model_id=MODEL)


def tokens_of(agent: str, tokens: int) -> list[int]:
    """An agent's tokens, which are always the same."""
    seed = int.from_bytes(agent.encode()[-8:], "little")
    return [int(each) for each in np.random.default_rng(seed).integers(0, 128256, tokens)]


@cache
def hashes_of(agent: str, tokens: int) -> tuple[bytes, ...]:
    """Names of the agent's blocks."""
    return tuple(blockfile.chain_hashes(FINGERPRINT, NAMESPACE, tokens_of(agent, tokens)))


def turn(
    agent: str, tokens: list[int], base: types_pb2.AgentVersion | None = None, keep: int = 0
) -> pb.CommitTurnRequest:
    """A turn of these tokens."""
    return pb.CommitTurnRequest(
        key=key(agent),
        base=base,
        keep_tokens=keep,
        token_ids=tokens,
        text=b"word" * len(tokens),
        offsets=range(_BYTES_PER_TOKEN, _BYTES_PER_TOKEN * len(tokens) + 1, _BYTES_PER_TOKEN),
        tokenizer_hash="t",
        generated_tokens=len(tokens) // 2,
        request_id=os.urandom(8).hex(),
        record=pb.TurnRecord(delta={"text": "word" * (len(tokens) // 2)}),  # type: ignore[arg-type]
    )


def fill(data: Path, agents: list[str], tokens: int) -> None:
    """Make agents by the store's own functions, without its process, 100 in a transaction of each database.

    Their files are links to empty ones of 4 KiB."""
    directory = DataDirectory(data)
    directory.acquire()
    database, warm = Database(directory.database), Database(directory.warm_database, warm_database.prepare)
    with ExitStack() as opened:
        opened.callback(directory.release)
        for each in (database, warm):
            each.open()
            opened.callback(each.close)
        for first in range(0, len(agents), _PER_TRANSACTION):
            some = agents[first : first + _PER_TRANSACTION]
            versions = database.write_blocking(partial(_commit, agents=some, tokens=tokens))
            warm.write_blocking(partial(_publish, versions=versions, tokens=tokens))
            template = directory.staging / "template"
            with open(os.open(template, os.O_WRONLY | os.O_CREAT, 0o600), "wb") as file:
                file.truncate(_SIZE)
            for agent in some:
                for chain_hash in hashes_of(agent, tokens):
                    path = directory.path(FileName(FileKind.BLOCK, chain_hash))
                    path.parent.mkdir(mode=0o700, exist_ok=True)
                    os.link(template, path)
            template.unlink()


def _commit(connection: sqlite3.Connection, agents: list[str], tokens: int) -> dict[str, Version]:
    ends, made = np.arange(1, tokens + 1, dtype=np.uint32) * np.uint32(_BYTES_PER_TOKEN), {}
    for agent in agents:
        owner = AgentKey(NAMESPACE, agent, MODEL)
        ids, places = np.array(tokens_of(agent, tokens), np.uint32), (TurnPlace(tokens, tokens // 2),)
        part = Ledger(ids, b"word" * tokens, ends, "t", places)
        turn = turns.Turn(owner, NO_VERSION, 0, part, "r", b"d", b"", Conversation("", 0, b""))
        made[agent] = turns.commit(connection, turn, Moment(now := time.time_ns(), now)).version
    return made


def _publish(connection: sqlite3.Connection, versions: dict[str, Version], tokens: int) -> None:
    for agent, version in versions.items():
        owner = AgentKey(NAMESPACE, agent, MODEL)
        names = [FileName(FileKind.BLOCK, chain_hash) for chain_hash in hashes_of(agent, tokens)]
        parent = blockfile.NO_PARENT
        for index, name in enumerate(names):
            place = index * blockfile.BLOCK_TOKENS, blockfile.BLOCK_TOKENS
            row = FileRow(name, *place, _SIZE, os.urandom(16), b"", owner, FINGERPRINT, parent)
            references.add(connection, row, time.time_ns())
            parent = name.chain_hash
        holding.replace(connection, owner, version, set(names), Standing(exists=True, is_known=True))

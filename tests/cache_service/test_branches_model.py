"""Any order of commits, forks, snapshots, restores, trims and deletions, against plain lists."""

import json
import shutil
import sqlite3
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from agentmem.keys import AgentKey
from cache_service import agents, branches, ledger, references, snapshots, turns
from cache_service.agents import NO_VERSION, Conversation, State, Version
from cache_service.database import Database
from cache_service.files import FileName, Kind
from cache_service.ledger import EMPTY, Part
from cache_service.references import FileOrigin, FileRow

_T = TypeVar("_T")
Files = frozenset[FileName]
AGENTS = st.sampled_from("abc")


@dataclass
class Memory:
    """What an agent should be: tokens, version, files, and kept states by name, oldest first."""

    tokens: list[int]
    version: int
    files: Files = frozenset()
    kept: dict[str, tuple[int, list[int], Files]] = field(default_factory=dict)

    def move(self, tokens: list[int], common: int) -> None:
        """Another state, which has `common` tokens with this one."""
        if common < len(self.tokens):
            self.kept[f"auto-{self.version}"] = (self.version, self.tokens, self.files)
            for name in [name for name in self.kept if name.startswith("auto-")][:-4]:
                del self.kept[name]
        self.tokens, self.version = tokens, self.version + 1


def key(agent: str) -> AgentKey:
    return AgentKey("n", agent, "m")


class BranchMachine(RuleBasedStateMachine):
    @initialize()
    def open(self) -> None:
        self.folder = Path(tempfile.mkdtemp())
        self.database = Database(self.folder / "store.db")
        self.database.open()
        self.model: dict[str, Memory] = {}
        self.next_token = 1
        self.uids: set[str] = set()

    def write(self, work: Callable[..., _T]) -> _T:
        return self.database.write_blocking(work)

    def state(self, agent: str) -> State:
        return self.database.read_blocking(lambda c: agents.find(c, key(agent))) or State(NO_VERSION, EMPTY)

    def some(self, data: st.DataObject) -> tuple[str, Memory]:
        agent = data.draw(st.sampled_from(sorted(self.model)))
        return agent, self.model[agent]

    @rule(data=st.data(), agent=AGENTS, count=st.integers(0, 4), publishes=st.booleans())
    def commit(self, data: st.DataObject, agent: str, count: int, publishes: bool) -> None:
        memory = self.model.get(agent) or Memory([], 0)
        keep = data.draw(st.integers(0, len(memory.tokens)) | st.just(len(memory.tokens)))
        new = list(range(self.next_token, self.next_token + count))
        self.next_token += count
        part = Part(
            np.array(new, dtype=np.uint32), b"x" * count, np.arange(1, count + 1, dtype=np.uint32), "t", min(1, count)
        )
        base = self.state(agent).version
        turn = turns.Turn(key(agent), base, keep, part, "", b"", b"", Conversation("", 0, b""))
        version = self.write(lambda c: turns.commit(c, turn, 0)).version
        if agent not in self.model:
            assert version.uid not in self.uids
            self.uids.add(version.uid)
            self.model[agent] = memory
        memory.move(memory.tokens[:keep] + new, keep)
        if publishes:
            self.publish(agent, memory, version)

    def publish(self, agent: str, memory: Memory, version: Version) -> None:
        """One file for each beginning of the ledger, so that what a state consists of can be told."""
        wanted = {
            FileName(Kind.BLOCK, bytes(str(memory.tokens[: end + 1]), "ascii")): end
            for end in range(len(memory.tokens))
        }

        def work(connection: sqlite3.Connection) -> None:
            there = references.existing(connection, wanted)
            for name in wanted.keys() - there:
                row = FileRow(name, wanted[name], 1, 1, b"")
                references.add(connection, row, FileOrigin(key(agent), "f", b""), 0)
            references.replace(connection, key(agent), *version, wanted.keys())

        self.write(work)
        memory.files = frozenset(wanted)

    @precondition(lambda self: self.model)
    @rule(data=st.data(), new=AGENTS, whole=st.booleans())
    def fork(self, data: st.DataObject, new: str, whole: bool) -> None:
        agent, memory = self.some(data)
        if new in self.model:
            return
        keep = None if whole else data.draw(st.integers(0, len(memory.tokens)))
        self.write(lambda c: branches.fork(c, key(agent), key(new), None, keep, 0))
        keep = len(memory.tokens) if keep is None else keep
        self.model[new] = Memory(memory.tokens[:keep], 1, self.cut(memory, keep))
        uid = self.state(new).version.uid
        assert uid not in self.uids
        self.uids.add(uid)

    @staticmethod
    def cut(memory: Memory, keep: int) -> Files:
        if keep == len(memory.tokens):
            return memory.files
        return frozenset(name for name in memory.files if len(json.loads(name.chain_hash)) <= keep)

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def trim(self, data: st.DataObject) -> None:
        agent, memory = self.some(data)
        keep = data.draw(st.integers(0, len(memory.tokens)))
        self.write(lambda c: branches.trim(c, key(agent), keep, memory.version, 0))
        if keep < len(memory.tokens):
            files = self.cut(memory, keep)
            memory.move(memory.tokens[:keep], keep)
            memory.files = files

    @precondition(lambda self: self.model)
    @rule(data=st.data(), name=st.sampled_from("xyz"))
    def snapshot(self, data: st.DataObject, name: str) -> None:
        agent, memory = self.some(data)
        if name not in memory.kept:
            self.write(lambda c: snapshots.create(c, key(agent), name, 0))
            memory.kept[name] = (memory.version, memory.tokens, memory.files)

    @precondition(lambda self: any(memory.kept for memory in self.model.values()))
    @rule(data=st.data())
    def restore(self, data: st.DataObject) -> None:
        agent = data.draw(st.sampled_from(sorted(agent for agent in self.model if self.model[agent].kept)))
        memory = self.model[agent]
        name = data.draw(st.sampled_from(sorted(memory.kept)))
        _, kept, files = memory.kept[name]
        before = memory.version
        self.write(lambda c: branches.restore(c, key(agent), name, 0))
        if self.state(agent).version.version == before:
            assert memory.tokens == kept
            return
        pairs = zip(memory.tokens, kept, strict=False)
        common = next((at for at, (one, other) in enumerate(pairs) if one != other), min(len(kept), len(memory.tokens)))
        memory.move(kept, common)
        memory.files = files

    @precondition(lambda self: any(memory.kept for memory in self.model.values()))
    @rule(data=st.data())
    def forget(self, data: st.DataObject) -> None:
        agent = data.draw(st.sampled_from(sorted(agent for agent in self.model if self.model[agent].kept)))
        name = data.draw(st.sampled_from(sorted(self.model[agent].kept)))
        self.write(lambda c: snapshots.delete(c, key(agent), name))
        del self.model[agent].kept[name]

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        agent, _ = self.some(data)
        self.write(lambda c: agents.delete(c, key(agent)))
        del self.model[agent]

    @invariant()
    def everything_reads_back(self) -> None:
        held: set[FileName] = set()
        alive: set[int] = set()
        for agent, memory in self.model.items():
            state = self.state(agent)
            assert state.version.version == memory.version
            assert self.read(state.head) == memory.tokens
            assert self.database.read_blocking(lambda c, u=state.version.uid: references.of(c, u)) == memory.files
            kept = self.database.read_blocking(lambda c, a=agent: snapshots.page(c, key(a), None, 100))
            assert [each.name for each in kept] == list(memory.kept)[::-1]
            for each in kept:
                version, wanted, files = memory.kept[each.name]
                assert (each.version.version, self.read(each.head)) == (version, wanted)
                found = self.database.read_blocking(lambda c, s=each.id: references.of_snapshot(c, s))
                assert found >= files
                held |= found
            held |= memory.files
            alive.update(memory.tokens, *(wanted for _, wanted, _ in memory.kept.values()))
        assert held <= set(self.database.read_blocking(references.all_names)), "no file that anybody has is gone"
        self.nothing_else_is_there(alive)

    def read(self, head: ledger.Head) -> list[int]:
        found = self.database.read_blocking(lambda c: ledger.read(c, head))
        assert head[1:] == (len(found.token_ids), len(found.text), len(found.turns))
        return found.token_ids.tolist()

    def nothing_else_is_there(self, alive: set[int]) -> None:
        """Segments hold no token but those of some branch: agents' own, snapshots', and versions of turns."""
        rows = self.database.read_blocking(lambda c: c.execute("SELECT token_ids FROM segments").fetchall())
        stored = {int(token) for (blob,) in rows for token in np.frombuffer(blob, dtype="<u4")}
        assert stored <= alive

    def teardown(self) -> None:
        if hasattr(self, "model"):
            for agent in list(self.model):
                self.write(lambda c, a=agent: agents.delete(c, key(a)))
            counts = (
                "SELECT (SELECT count(*) FROM segments), (SELECT count(*) FROM snapshots), (SELECT count(*) FROM refs)"
            )
            assert self.database.read_blocking(lambda c: c.execute(counts).fetchone()) == (0, 0, 0)
            self.database.close()
            shutil.rmtree(self.folder)


TestBranches = BranchMachine.TestCase
TestBranches.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)

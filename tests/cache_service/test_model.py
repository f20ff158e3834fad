"""Any order of what clients may ask, with two writers and restarts, against the model.

Over a real socket, with real SQLite and real files. AGENTMEM_MODEL_EXAMPLES is the number of such orders; if nobody
says so 4, and 30 with AGENTMEM_FULL_MATRIX=1. `test_model_faults` shows what is caught.
"""

import copy
import sys
import time
from collections.abc import Callable

from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from agentmem.kv import ledger
from agentmem.kv.blockfile import FileKind, FileName
from agentmem.v1 import agent_pb2, types_pb2
from agentmem.v1 import cache_store_pb2 as pb

from . import audit, kv
from .machine import EXAMPLES, Machine
from .model import File, Files, Memory, Request, State, World

Version = types_pb2.AgentVersion
AGENTS = st.sampled_from("abc")
WRITERS = st.integers(0, 1)
TOKENS = st.lists(st.sampled_from([0, 7, 12, 345]), max_size=5)
NAMES = st.sampled_from("xy")
HOUR = 3600 * 10**9


class StoreMachine(Machine):
    """Two writers, each with what it last saw of every agent; the third party has no idea of versions."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World()
        self.seen: tuple[dict[str, Version], dict[str, Version]] = ({}, {})
        self.states: dict[bytes, State] = {}
        self.repeatable: list[tuple[str, pb.CommitTurnRequest, Version]] = []
        self.names: set[FileName] = set()
        self.uids: set[str] = set()
        self.staged = 0
        self.turns = 0

    def version(self, agent: str) -> Version:
        memory = self.world.agents.get(agent)
        if memory is None:
            return Version()
        return Version(uid=memory.uid, version=memory.version, revision=memory.revision)

    def moved(self, agent: str, found: Version) -> None:
        """The answer to a mutation of an agent's state. A new version has a revision that never was before."""
        memory = self.world.agents[agent]
        if found.version != memory.stamped:
            assert len(found.revision) == 16 and found.revision not in self.states
            memory.revision, memory.stamped = found.revision, found.version
        assert found == self.version(agent)
        self.states[found.revision] = memory.state

    def new_uid(self, uid: str) -> str:
        assert uid not in self.uids
        self.uids.add(uid)
        return uid

    @rule(agent=AGENTS, writer=WRITERS)
    def look(self, agent: str, writer: int) -> None:
        known = self.seen[writer].get(agent)
        opened = self.call(self.store.cache.OpenCache, pb.OpenCacheRequest(key=kv.key(agent), known=known))
        assert opened.version == self.version(agent)
        assert opened.HasField("ledger") == (agent in self.world.agents and known != opened.version)
        self.seen[writer][agent] = opened.version

    @rule(data=st.data(), agent=AGENTS, writer=WRITERS, ids=TOKENS, named=st.booleans())
    def commit(self, data: st.DataObject, agent: str, writer: int, ids: list[int], named: bool) -> None:
        """A turn on what the writer believes: another writer may have been faster."""
        memory = self.world.agents.get(agent)
        length = 0 if memory is None else len(memory.state.tokens)
        self.turn(agent, writer, data.draw(st.just(length) | st.integers(0, length), "keep_tokens"), ids, named)

    def turn(self, agent: str, writer: int, keep: int, ids: list[int], named: bool = False) -> None:
        base, memory = self.seen[writer].get(agent, Version()), self.world.agents.get(agent)
        keep = min(keep, 0 if memory is None else len(memory.state.tokens))
        self.turns += 1
        text = f"turn {self.turns}"
        request = kv.turn(ids, base, keep, kv.key(agent), record=pb.TurnRecord(delta={"text": text}))  # type: ignore[arg-type]
        request.commit_id = f"{text:>16}".encode()
        if named:
            request.request_id, request.request_digest = text, text.encode()
        if base != self.version(agent):
            assert self.refused(self.store.cache.CommitTurn, request) == "ABORTED"
            self.look(agent, writer)
            return
        done = self.call(self.store.cache.CommitTurn, request)
        assert not done.HasField("replayed")
        uid = self.new_uid(done.version.uid) if memory is None else memory.uid
        turn = self.world.commit(agent, uid, keep, ids, request.generated_tokens)
        if named:
            self.world.agents[agent].requests[text] = Request(text.encode(), turn.version, turn.serial)
        self.moved(agent, done.version)
        self.world.agents[agent].made[turn.version] = done.version.revision, turn.serial
        self.repeatable.append((agent, request, done.version))
        self.seen[writer][agent] = done.version

    def repeat(self, data: st.DataObject) -> None:
        """A commit whose answer was lost, sent again, whatever has happened since."""
        agent, request, version = data.draw(st.sampled_from(self.repeatable), "commit")
        if request.base == self.version(agent):  # as it was before: it is a commit like others
            return
        memory = self.world.agents.get(agent)
        made = memory.made.get(version.version, (b"", 0))[0] if memory and memory.uid == version.uid else b""
        if made != version.revision:
            assert self.refused(self.store.cache.CommitTurn, request) == "ABORTED"
            return
        done = self.call(self.store.cache.CommitTurn, request)
        assert done.version == version and not done.HasField("replayed")

    @rule(data=st.data(), agent=AGENTS, keep=st.integers(0, 2), ids=TOKENS)
    def lose(self, data: st.DataObject, agent: str, keep: int, ids: list[int]) -> None:
        """A backup is restored, the other writer goes on, and one still has what was committed after the backup."""
        self.look(agent, 0)
        self.stage([])  # after all that unlinks, for nothing may vanish while the directory is copied
        backup, world = self.back_up(), copy.deepcopy(self.world)
        self.turn(agent, 0, keep, [*ids, 1])
        self.return_to(backup)
        self.world, self.staged = world, 0
        self.look(agent, 1)
        self.turn(agent, 1, keep, [*ids, 2])
        self.publish(agent, 0, window=False)
        self.turn(agent, 0, keep, [3])
        self.repeat(data)

    @rule(data=st.data(), agent=AGENTS, writer=WRITERS, ids=TOKENS, window=st.booleans())
    def speak(self, data: st.DataObject, agent: str, writer: int, ids: list[int], window: bool) -> None:
        self.look(agent, writer)
        self.commit(data, agent, writer, ids, named=True)
        self.publish(agent, writer, window)

    @initialize()
    def two_agents(self) -> None:
        for agent in "ab":
            self.turn(agent, 0, 0, [0, 7, 12, 345])
            self.publish(agent, 0, window=False)

    @rule(data=st.data(), agent=AGENTS, turns=st.integers(1, 6))
    def rewrite(self, data: st.DataObject, agent: str, turns: int) -> None:
        """Somebody changes their mind again and again; most drop what was there."""
        for number in range(turns):
            self.look(agent, 0)
            keep = data.draw(st.integers(0, 2), "keep_tokens") if agent in self.world.agents else 0
            self.turn(agent, 0, keep, [number, 7, 7], named=True)
            self.publish(agent, 0, window=False)

    @rule(agent=AGENTS, keep=st.integers(0, 2), ids=TOKENS)
    def race(self, agent: str, keep: int, ids: list[int]) -> None:
        """One writer's files come after the other's whole turn."""
        for writer, after in enumerate((keep, 99)):
            self.look(agent, writer)
            self.turn(agent, writer, after, [*ids, writer])
        self.publish(agent, 1, window=True)
        self.publish(agent, 0, window=True)

    @precondition(lambda self: any(memory.requests for memory in self.world.agents.values()))
    @rule(data=st.data(), writer=WRITERS, same=st.booleans())
    def replay(self, data: st.DataObject, writer: int, same: bool) -> None:
        agent, memory = self.some(data, lambda memory: bool(memory.requests))
        name = data.draw(st.sampled_from(sorted(memory.requests)), "request_id")
        known = memory.requests[name]
        request = kv.turn([9], self.seen[writer].get(agent), agent=kv.key(agent), request_id=name)
        request.request_digest = known.digest if same else b"other"
        if not same:
            assert self.refused(self.store.cache.CommitTurn, request) == "INVALID_ARGUMENT"
            return
        done = self.call(self.store.cache.CommitTurn, request)
        assert done.version == done.replayed.version
        assert (done.version.uid, done.version.version) == (memory.uid, known.version)
        assert done.version.revision == memory.made[known.version][0]
        assert done.replayed.record.delta.text == name
        opened = self.call(self.store.cache.OpenCache, pb.OpenCacheRequest(key=kv.key(agent), request_id=name))
        assert opened.turn == done.replayed

    @rule(agent=AGENTS, writer=WRITERS, window=st.booleans())
    def publish(self, agent: str, writer: int, window: bool) -> None:
        version = self.seen[writer].get(agent, Version())
        if not version.uid:
            return
        headers = self.states[version.revision].headers(window=window)
        self.names |= headers.keys()
        staged = self.stage(list(headers))
        assert {FileName(FileKind(file.kind), file.chain_hash) for file in staged} == headers.keys() - self.world.files
        written, new = [], {}
        for file in staged:
            name = FileName(FileKind(file.kind), file.chain_hash)
            written.append(kv.write(file, headers[name]))
            new[name] = File(agent, headers[name], written[-1].digest, written[-1].size_bytes)
        request = pb.PublishBlocksRequest(key=kv.key(agent), version=version, files=written, fingerprint=kv.FINGERPRINT)
        request.references.extend(map(kv.message, headers))
        done = self.call(self.store.cache.PublishBlocks, request)
        welcome = any(memory.uid == version.uid for memory in self.world.agents.values())
        assert (done.published, done.dropped) == ((len(new), 0) if welcome else (0, len(new)))
        state = ledger.Version.from_proto(version)
        self.world.publish(agent, state, frozenset(headers), new)

    def stage(self, names: list[FileName]) -> list[pb.StagedFile]:
        request = pb.StageBlocksRequest(namespace="default", names=map(kv.message, names))
        return list(self.call(self.store.cache.StageBlocks, request).files)

    @rule()
    def abandon(self) -> None:
        header = kv.header([1, 2, 3])
        (staged,) = self.stage([FileName(FileKind.BLOCK, header.chain_hash)])
        kv.write(staged, header)
        self.staged += 1

    @rule(data=st.data(), agent=AGENTS, writer=WRITERS, guarded=st.booleans())
    def trim(self, data: st.DataObject, agent: str, writer: int, guarded: bool) -> None:
        memory, seen = self.world.agents.get(agent), self.seen[writer].get(agent, Version()).version
        request = agent_pb2.TrimAgentRequest(key=kv.key(agent), if_version=seen if guarded else None)
        if memory is None:
            assert self.refused(self.store.agents.TrimAgent, request) == "NOT_FOUND"
            return
        request.keep_tokens = data.draw(st.integers(0, len(memory.state.tokens) + 1), "keep_tokens")
        if guarded and seen != memory.version:
            if self.was_trimmed(memory, seen, request.keep_tokens):
                assert self.call(self.store.agents.TrimAgent, request).agent.version == self.version(agent)
            else:
                assert self.refused(self.store.agents.TrimAgent, request) == "ABORTED"
        elif request.keep_tokens > len(memory.state.tokens):
            assert self.refused(self.store.agents.TrimAgent, request) == "INVALID_ARGUMENT"
        else:
            self.world.trim(agent, request.keep_tokens)
            self.moved(agent, self.call(self.store.agents.TrimAgent, request).agent.version)

    @staticmethod
    def was_trimmed(memory: Memory, version: int, keep: int) -> bool:
        """Return whether this trim has made the present state: then it was sent again."""
        before = [kept.state for kept in memory.kept.values() if kept.version == version == memory.version - 1]
        return bool(before) and keep < len(before[0].tokens) and before[0].cut(keep) == memory.state

    @rule(data=st.data(), agent=AGENTS, new=AGENTS, old=st.booleans(), part=st.booleans())
    def fork(self, data: st.DataObject, agent: str, new: str, old: bool, part: bool) -> None:
        memory = self.world.agents.get(agent)
        request = agent_pb2.ForkAgentRequest(key=kv.key(agent), new_agent_id=new)
        if memory is None or new in self.world.agents:
            expected = "NOT_FOUND" if memory is None else "ALREADY_EXISTS"
            assert self.refused(self.store.agents.ForkAgent, request) == expected
            return
        state, files = memory.state, memory.files
        if old:
            request.at_version = data.draw(st.integers(1, memory.version + 1), "at_version")
            found = self.kept(memory, request.at_version)
            if found is None:
                assert self.refused(self.store.agents.ForkAgent, request) == "NOT_FOUND"
                return
            state, files = found
        if part:
            request.keep_tokens = data.draw(st.integers(0, len(state.tokens)), "keep_tokens")
        made = self.call(self.store.agents.ForkAgent, request).agent
        self.world.fork(new, self.new_uid(made.version.uid), state, files, request.keep_tokens if part else None)
        self.moved(new, made.version)

    def kept(self, memory: Memory, version: int) -> tuple[State, Files] | None:
        """The state that an agent had at a version, where somebody still has it."""
        if version == memory.version:
            return memory.state, memory.files
        for kept in reversed(memory.kept.values()):
            if kept.version == version:
                return kept.state, kept.files
        state = memory.committed.get(version)
        if state is None or not self.world.is_whole(state.turns[-1].serial):
            return None
        return state, self.world.within(memory.files, memory.state.common(state))

    @rule(agent=AGENTS, name=NAMES)
    def snapshot(self, agent: str, name: str) -> None:
        memory = self.world.agents.get(agent)
        request = agent_pb2.CreateSnapshotRequest(key=kv.key(agent), name=name)
        if memory is None:
            assert self.refused(self.store.agents.CreateSnapshot, request) == "NOT_FOUND"
        elif memory.kept.get(name, memory).version != memory.version:
            assert self.refused(self.store.agents.CreateSnapshot, request) == "ALREADY_EXISTS"
        else:
            made = self.call(self.store.agents.CreateSnapshot, request).snapshot
            assert made.version == self.version(agent) and not made.automatic
            self.world.snapshot(agent, name)

    @precondition(lambda self: any(memory.kept for memory in self.world.agents.values()))
    @rule(data=st.data())
    def restore(self, data: st.DataObject) -> None:
        agent, memory = self.some(data, lambda memory: bool(memory.kept))
        name = data.draw(st.sampled_from(sorted(memory.kept)), "name")
        kept = memory.kept[name]
        request = agent_pb2.RestoreSnapshotRequest(key=kv.key(agent), name=name)
        found = self.call(self.store.agents.RestoreSnapshot, request).agent.version
        # Two empty ledgers may have different pasts, and then the one in place of the other is a new version.
        if kept.state != memory.state or (not memory.state.tokens and found != self.version(agent)):
            self.world.become(agent, kept.state, kept.files)
        self.moved(agent, found)

    @precondition(lambda self: any(memory.kept for memory in self.world.agents.values()))
    @rule(data=st.data())
    def forget(self, data: st.DataObject) -> None:
        agent, memory = self.some(data, lambda memory: bool(memory.kept))
        name = data.draw(st.sampled_from(sorted(memory.kept)), "name")
        self.call(self.store.agents.DeleteSnapshot, agent_pb2.DeleteSnapshotRequest(key=kv.key(agent), name=name))
        self.world.forget(agent, name)

    def some(self, data: st.DataObject, which: Callable[[Memory], bool]) -> tuple[str, Memory]:
        agent = data.draw(
            st.sampled_from(sorted(a for a, memory in self.world.agents.items() if which(memory))), "agent"
        )
        return agent, self.world.agents[agent]

    @rule(agent=AGENTS)
    def delete(self, agent: str) -> None:
        request = agent_pb2.DeleteAgentRequest(key=kv.key(agent))
        if agent not in self.world.agents:
            assert self.refused(self.store.agents.DeleteAgent, request) == "NOT_FOUND"
            return
        assert self.call(self.store.agents.DeleteAgent, request).freed_bytes == self.world.delete(agent)

    @rule(agent=AGENTS)
    def evict(self, agent: str) -> None:
        request = agent_pb2.EvictAgentRequest(key=kv.key(agent), tier=types_pb2.TIER_WARM)
        if agent not in self.world.agents:
            assert self.refused(self.store.agents.EvictAgent, request) == "NOT_FOUND"
            return
        assert self.call(self.store.agents.EvictAgent, request).freed_bytes == self.world.evict(agent)

    @rule(agent=AGENTS, pinned=st.booleans())
    def pin(self, agent: str, pinned: bool) -> None:
        request = agent_pb2.PinAgentRequest(key=kv.key(agent), pinned=pinned)
        if agent not in self.world.agents:
            assert self.refused(self.store.agents.PinAgent, request) == "NOT_FOUND"
            return
        assert self.call(self.store.agents.PinAgent, request).agent.pinned == pinned
        self.world.agents[agent].pinned = pinned

    @rule(agent=AGENTS, expires=st.booleans(), ends=st.booleans())
    def set_times(self, agent: str, expires: bool, ends: bool) -> None:
        request = agent_pb2.SetAgentTtlRequest(key=kv.key(agent))
        for field, is_set in ((request.ttl, expires), (request.delete_after, ends)):
            if is_set:
                field.FromNanoseconds(HOUR)
        if agent not in self.world.agents:
            assert self.refused(self.store.agents.SetAgentTtl, request) == "NOT_FOUND"
            return
        self.call(self.store.agents.SetAgentTtl, request)
        self.world.agents[agent].expires, self.world.agents[agent].ends = expires, ends

    @rule(hours=st.integers(0, 2))
    def upkeep(self, hours: int) -> None:
        self.runner.run(self.store.store.upkeep(time.time_ns() + hours * HOUR))
        if hours:
            self.world.expire()

    @precondition(lambda self: self.world.files)
    @rule(data=st.data())
    def quarantine(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.world.files)), "file")
        request = pb.QuarantineBlockRequest(namespace="default", name=kv.message(name), reason="digest")
        self.call(self.store.cache.QuarantineBlock, request)
        self.world.quarantine(name)

    @rule(crash=st.booleans())
    def restart(self, crash: bool) -> None:
        """Closed and opened again; or what a kill would have left of the directory at this moment."""
        self.stage([])  # after all that unlinks, for nothing may vanish while the directory is copied
        self.reopen(crash)
        self.staged = 0

    @invariant()
    def is_as_the_model_says(self) -> None:
        self.stage([])  # after all that unlinks
        self.runner.run(audit.check_answers(self.store, self.world, self.names))
        audit.check(self.store.data, self.world)
        audit.check_files(self.store.data, self.world, self.staged)

    def teardown(self) -> None:
        """Nothing is left when the last agent is deleted, unless something went wrong before."""
        try:
            if sys.exc_info()[0] is None:
                for agent in list(self.world.agents):
                    self.delete(agent)
                self.restart(crash=False)
                audit.check_empty(self.store.data)
        finally:
            super().teardown()


TestStore = StoreMachine.TestCase
TestStore.settings = EXAMPLES

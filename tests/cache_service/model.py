"""The store's promises as plain tuples and sets: the side that test_model holds the real store against.

A ledger is a tuple of tokens, and each token knows the commit that it came with: two commits of equal tokens are two
branches. Files are names in sets: who refers to which follows from the store's rules alone.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from agentmem.kv import blockfile
from agentmem.kv.blockfile import BlockHeader, FileKind, FileName
from agentmem.kv.ledger import Version

from . import kv

BLOCK_TOKENS = 2
WINDOW_TOKENS = 3
AUTOMATIC_KEPT = 4

Files = frozenset[FileName]


class Token(NamedTuple):
    id: int
    serial: int


class Turn(NamedTuple):
    serial: int
    version: int
    end: int
    generated: int


class State(NamedTuple):
    tokens: tuple[Token, ...] = ()
    turns: tuple[Turn, ...] = ()

    def cut(self, tokens: int) -> "State":
        return State(self.tokens[:tokens], tuple(turn for turn in self.turns if turn.end <= tokens))

    def common(self, other: "State") -> int:
        pairs = zip(self.tokens, other.tokens, strict=False)
        shorter = min(len(self.tokens), len(other.tokens))
        return next((at for at, (one, two) in enumerate(pairs) if one != two), shorter)

    def headers(self, *, window: bool) -> dict[FileName, BlockHeader]:
        """The files that this state consists of: blocks, and a window at the end."""
        ids, parent, found = [token.id for token in self.tokens], blockfile.NO_PARENT, {}
        for first in range(0, len(ids), BLOCK_TOKENS):
            block = ids[first : first + BLOCK_TOKENS]
            name = blockfile.chain_hash(kv.FINGERPRINT, "default", parent, block)
            header = BlockHeader(kv.FINGERPRINT, "default", name, parent, first, len(block))
            found[FileName(FileKind.BLOCK, name)] = header
            parent = name
        if window and ids:
            first = max(0, len(ids) - WINDOW_TOKENS)
            header = BlockHeader(kv.FINGERPRINT, "default", parent, b"", first, len(ids) - first, window=True)
            found[FileName(FileKind.WINDOW, parent)] = header
        return found


EMPTY = State()


class Kept(NamedTuple):
    version: int
    state: State
    files: Files
    revision: bytes


class Request(NamedTuple):
    digest: bytes
    version: int
    serial: int


class File(NamedTuple):
    origin: str
    header: BlockHeader
    digest: bytes
    size: int


@dataclass
class Memory:
    """One agent. `committed` are the states that its turns ended with, `evicted` since none was published.

    `revision` is of its version, once that is `stamped`; `made` says by version which revision and which commit there
    was, of turns that are kept.
    """

    uid: str
    version: int = 1
    state: State = EMPTY
    files: Files = frozenset()
    published: int = 0
    kept: dict[str, Kept] = field(default_factory=dict)
    requests: dict[str, Request] = field(default_factory=dict)
    committed: dict[int, State] = field(default_factory=dict)
    evicted: bool = False
    revision: bytes = b""
    stamped: int = 0
    made: dict[int, tuple[bytes, int]] = field(default_factory=dict)
    pinned: bool = False
    expires: bool = False
    ends: bool = False

    @property
    def names(self) -> set[FileName]:
        return set(self.files).union(*(kept.files for kept in self.kept.values()))


def _kept(memory: Memory) -> Kept:
    return Kept(memory.version, memory.state, memory.files, memory.revision)


class World:
    def __init__(self) -> None:
        self.agents: dict[str, Memory] = {}
        self.files: dict[FileName, File] = {}
        self._serial = 0

    @property
    def states(self) -> list[State]:
        agents = self.agents.values()
        return [memory.state for memory in agents] + [kept.state for m in agents for kept in m.kept.values()]

    def is_whole(self, serial: int) -> bool:
        """Return whether a branch has the turn."""
        return any(turn.serial == serial for state in self.states for turn in state.turns)

    def commit(self, agent: str, uid: str, keep: int, ids: list[int], generated: int) -> Turn:
        memory = self.agents.setdefault(agent, Memory(uid, 0))
        self._serial += 1
        kept = memory.state.cut(keep)
        turn = Turn(self._serial, memory.version + 1, keep + len(ids), generated)
        tokens = (*kept.tokens, *(Token(id, self._serial) for id in ids))
        self._move(memory, State(tokens, (*kept.turns, turn)), memory.files)
        memory.committed[memory.version] = memory.state
        return turn

    def fork(self, new: str, uid: str, state: State, files: Files, keep: int | None) -> None:
        if keep is not None and keep < len(state.tokens):
            state, files = state.cut(keep), self.within(files, keep)
        self.agents[new] = Memory(uid, 1, state, files, 1)

    def trim(self, agent: str, keep: int) -> None:
        memory = self.agents[agent]
        if keep < len(memory.state.tokens):
            self.become(agent, memory.state.cut(keep), self.within(memory.files, keep))

    def become(self, agent: str, state: State, files: Files) -> None:
        memory = self.agents[agent]
        before = memory.files
        self._move(memory, state, files)
        memory.published = memory.version
        self.drop(before)

    def _move(self, memory: Memory, state: State, files: Files) -> None:
        pushed_out: list[Kept] = []
        if memory.state.common(state) < len(memory.state.tokens):
            memory.kept[f"auto-{memory.version}"] = _kept(memory)
            automatic = [name for name in memory.kept if name.startswith("auto-")]
            pushed_out = [memory.kept.pop(name) for name in automatic[:-AUTOMATIC_KEPT]]
        memory.state, memory.files, memory.version = state, files, memory.version + 1
        for kept in pushed_out:
            self.drop(kept.files)

    def snapshot(self, agent: str, name: str) -> None:
        memory = self.agents[agent]
        memory.kept.setdefault(name, _kept(memory))

    def forget(self, agent: str, name: str) -> None:
        memory = self.agents[agent]
        self.drop(memory.kept.pop(name).files)
        requests = memory.requests.items()
        memory.requests = {id: request for id, request in requests if self.is_whole(request.serial)}
        memory.made = {version: turn for version, turn in memory.made.items() if self.is_whole(turn[1])}

    def publish(self, agent: str, version: Version, names: Files, new: dict[FileName, File]) -> None:
        memory = self.agents.get(agent)
        if memory is None or memory.uid != version.uid:
            return
        self.files.update(new)
        made = memory.revision, memory.made.get(version.number, (b"", 0))[0]
        if version.revision not in (*made, *(kept.revision for kept in memory.kept.values())):
            return
        before, late = memory.names, memory.published > version.number
        for name, kept in memory.kept.items():
            if kept.version == version.number or (kept.version > version.number and not late):
                memory.kept[name] = kept._replace(files=kept.files | names if late else names)
        if not late:
            memory.files, memory.published, memory.evicted = names, version.number, False
        self.drop(before)

    def evict(self, agent: str) -> int:
        memory = self.agents[agent]
        names = memory.names
        memory.files = frozenset()
        memory.kept = {name: kept._replace(files=frozenset()) for name, kept in memory.kept.items()}
        before = dict(self.files)
        self.drop(names)
        gone = before.keys() - self.files.keys()
        memory.evicted |= bool(names)
        return sum(before[name].size for name in gone)

    def delete(self, agent: str) -> int:
        memory = self.agents.pop(agent, None)
        names = {name for name, file in self.files.items() if file.origin == agent}
        names |= memory.names if memory is not None else set()
        before = sum(file.size for file in self.files.values())
        self.drop(names)
        return before - sum(file.size for file in self.files.values())

    def expire(self) -> None:
        for agent in [agent for agent, memory in self.agents.items() if memory.ends]:
            self.delete(agent)
        for agent in [agent for agent, memory in self.agents.items() if memory.expires]:
            self.evict(agent)

    def quarantine(self, name: FileName) -> None:
        del self.files[name]

    def within(self, names: Files, tokens: int) -> Files:
        headers = {name: self.files[name].header for name in names & self.files.keys()}
        return frozenset(n for n, header in headers.items() if header.first_token + header.token_count <= tokens)

    def drop(self, names: Iterable[FileName]) -> None:
        held = set[FileName]().union(*(memory.names for memory in self.agents.values()))
        for name in set(names) - held:
            self.files.pop(name, None)

"""The model finds stores that are broken on purpose, with the examples that it has by default."""

import sqlite3
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import grpc
import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from agentmem.kv.blockfile import FileName
from agentmem.kv.ledger import Version
from cache_service.files import holding, references
from cache_service.files.directory import DataDirectory
from cache_service.files.references import Dropped
from cache_service.ledger import agents, kv_changes, snapshots, turns, versions
from cache_service.ledger import segments as ledger
from cache_service.ledger.clock import Moment
from cache_service.ledger.turns import Commit, Turn
from cache_service.tiers.blocks import BlockStore
from tests.cache_service.machine import EXAMPLES
from tests.cache_service.test_model import StoreMachine

Patch = pytest.MonkeyPatch
FAULTS: dict[str, Callable[[Patch], None]] = {}


def fault(function: Callable[[Patch], None]) -> Callable[[Patch], None]:
    FAULTS[function.__name__] = function
    return function


@fault
def a_branch_loses_a_token(patch: Patch) -> None:
    cut = ledger.cut
    patch.setattr(ledger, "cut", lambda connection, head, tokens: cut(connection, head, tokens - (tokens > 1)))


@fault
def the_second_writer_wins(patch: Patch) -> None:
    commit = turns.commit

    def careless(connection: sqlite3.Connection, turn: Turn, now: Moment) -> Commit:
        state = agents.find(connection, turn.key)
        return commit(connection, replace(turn, base=state.version, keep_tokens=0) if state else turn, now)

    patch.setattr(turns, "commit", careless)


@fault
def states_are_compared_by_number_alone(patch: Patch) -> None:
    commit = turns.commit

    def careless(connection: sqlite3.Connection, turn: Turn, now: Moment) -> Commit:
        state = agents.find(connection, turn.key)
        same = state is not None and state.version[:2] == turn.base[:2]
        return commit(connection, replace(turn, base=state.version) if state and same else turn, now)

    patch.setattr(turns, "commit", careless)


@fault
def files_of_a_state_that_never_was_are_an_agents(patch: Patch) -> None:
    standing = kv_changes.standing
    patch.setattr(kv_changes, "standing", lambda *arguments: standing(*arguments)._replace(is_known=True))


@fault
def a_repeated_commit_is_a_strangers(patch: Patch) -> None:
    patch.setattr(turns, "_made_by", lambda connection, turn, present: None)


@fault
def a_new_version_keeps_the_revision(patch: Patch) -> None:
    patch.setattr(versions, "following", lambda v: v._replace(number=v.number + 1) if v.uid else versions.first())


@fault
def snapshots_are_forgotten_when_files_are_dropped(patch: Patch) -> None:
    def drop(connection: sqlite3.Connection, namespace: str, names: Iterable[FileName]) -> tuple[list[FileName], int]:
        dropped, size = [], 0
        for name in names:
            row = connection.execute(
                "DELETE FROM files WHERE kind = ? AND chain_hash = ? AND namespace = ? AND NOT EXISTS (SELECT 1 FROM"
                " held AS h WHERE h.kind = files.kind AND h.chain_hash = files.chain_hash AND h.last_version IS NULL)"
                " RETURNING size_bytes",
                (*name, namespace),
            ).fetchone()
            if row is not None:
                dropped.append(name)
                size += row[0]
        return dropped, size

    patch.setattr(holding, "drop_unheld", drop)


@fault
def one_automatic_snapshot_too_few(patch: Patch) -> None:
    patch.setattr(snapshots, "AUTOMATIC_KEPT", 3)


@fault
def segments_that_nobody_needs_stay(patch: Patch) -> None:
    patch.setattr(ledger, "drop_unused", lambda connection, segments: None)


@fault
def files_without_a_row_stay(patch: Patch) -> None:
    patch.setattr(DataDirectory, "remove", lambda self, names: 0)


@fault
def the_file_goes_and_the_row_stays(patch: Patch) -> None:
    register = BlockStore._register

    def careless(self: BlockStore, *arguments: Any) -> list[FileName] | None:
        gone = register(self, *arguments)
        self._directory.remove(arguments[2])
        return gone

    patch.setattr(BlockStore, "_register", careless)


@fault
def a_deletion_leaves_what_its_turns_computed(patch: Patch) -> None:
    patch.setattr(references, "computed_by", lambda connection, key: [])


@fault
def files_do_not_follow_the_ledger(patch: Patch) -> None:
    patch.setattr(holding, "follow", lambda connection, states: Dropped())


@fault
def a_cut_state_keeps_its_files(patch: Patch) -> None:
    move = kv_changes.move

    def careless(c: sqlite3.Connection, n: str, v: Version, s: tuple[str, int], tokens: int) -> None:
        move(c, n, v, s, tokens + 1000)

    patch.setattr(kv_changes, "move", careless)


@pytest.mark.slow
@pytest.mark.parametrize("name", FAULTS)
def test_a_broken_store_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    FAULTS[name](monkeypatch)
    only_find = settings(
        EXAMPLES, derandomize=True, phases=[Phase.generate], database=None, report_multiple_bugs=False, print_blob=False
    )
    with pytest.raises((AssertionError, grpc.aio.AioRpcError, OSError, sqlite3.Error)):
        run_state_machine_as_test(StoreMachine, settings=only_find)

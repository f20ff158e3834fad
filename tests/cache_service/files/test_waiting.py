"""What waits to be uploaded: nothing that a state holds is forgotten, whatever happens while an upload is under way."""

import sqlite3
from collections.abc import Iterator

import pytest

from agentmem.kv.blockfile import FileName
from agentmem.validation import AgentKey
from cache_service.files import holding, references, waiting, warm_database
from cache_service.files.references import FileRow

X, Y = FileName.block(b"x" * 32), FileName.block(b"y" * 32)
KEY = AgentKey("n", "a", "m")


@pytest.fixture
def warm() -> Iterator[sqlite3.Connection]:
    """A warm.db in memory, with two files that the agent "a" holds."""
    connection = sqlite3.connect(":memory:", isolation_level=None)
    connection.execute("PRAGMA recursive_triggers = ON")
    warm_database.prepare(connection)
    for name in (X, Y):
        publish(connection, name)
        holding.hold(connection, [("a", holding.OWN)], name)
    yield connection
    connection.close()


def publish(connection: sqlite3.Connection, name: FileName) -> None:
    references.add(connection, FileRow(name, 0, 256, 1, b"d", key=KEY, fingerprint="f"), 1)


def names(connection: sqlite3.Connection) -> list[FileName]:
    return [each.file.name for each in waiting.following(connection, 10)]


def test_without_an_object_store_nothing_waits(warm: sqlite3.Connection) -> None:
    assert names(warm) == []
    waiting.add(warm, [X])
    assert waiting.count(warm) == 0


def test_a_state_that_comes_while_a_file_is_uploaded_has_it_looked_at_again(warm: sqlite3.Connection) -> None:
    """Else its object would have no reference of that state, and go with the others'."""
    waiting.begin(warm, [])
    asked = waiting.following(warm, 10)
    assert [each.holders for each in asked] == [[("a", 0)], [("a", 0)]]
    holding.hold(warm, [("b", holding.OWN)], X)
    waiting.end(warm, [each.id for each in asked], [])
    [again] = waiting.following(warm, 10)
    assert (again.file.name, again.holders) == (X, [("a", 0), ("b", 0)])


def test_a_failed_upload_comes_after_all_others(warm: sqlite3.Connection) -> None:
    waiting.begin(warm, [])
    first, second = waiting.following(warm, 10)
    waiting.end(warm, [], [first.id])
    assert names(warm) == [second.file.name, first.file.name]


def test_the_end_of_one_upload_ends_no_other_files_wait(warm: sqlite3.Connection) -> None:
    """X waits again after a failure, is dropped while it is tried, and a third file comes."""
    waiting.begin(warm, [])
    first, _ = waiting.following(warm, 10)
    waiting.end(warm, [], [first.id])
    _, again = waiting.following(warm, 10)
    assert again.file.name == X
    references.forget(warm, [X])
    third = FileName.block(b"z" * 32)
    publish(warm, third)
    holding.hold(warm, [("a", holding.OWN)], third)
    waiting.end(warm, [again.id], [])
    assert names(warm) == [Y, third]


def test_a_file_that_is_here_again_waits_again(warm: sqlite3.Connection) -> None:
    """Its states hold it all the time, as where it was in quarantine."""
    waiting.begin(warm, [])
    references.forget(warm, [X])
    assert names(warm) == [Y]
    publish(warm, X)
    waiting.add(warm, [X])
    assert names(warm) == [Y, X]


def test_after_a_time_without_an_object_store_copies_are_looked_at_again(warm: sqlite3.Connection) -> None:
    """States that came meanwhile refer to none of them; at a usual start all that is copied is passed over."""
    waiting.begin(warm, [X])
    assert set(names(warm)) == {X, Y}
    waiting.end(warm, [each.id for each in waiting.following(warm, 10)], [])
    waiting.begin(warm, [X])
    assert names(warm) == [Y]
    waiting.leave(warm)
    assert names(warm) == []
    waiting.begin(warm, [X])
    assert set(names(warm)) == {X, Y}

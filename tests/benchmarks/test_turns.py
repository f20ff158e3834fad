"""A turn must be as its benchmark says, or its figures are refused."""

import pytest

from benchmarks.turns import Turn, WrongTurn, check


def turn(**changes: object) -> Turn:
    fields = {"prompt": 120, "generated": 2, "token_ids": [1, 2], "cached": {"warm": 100}, "load_bytes": 9}
    return Turn(**{**fields, **changes})  # type: ignore[arg-type]


def test_a_turn_as_it_should_be() -> None:
    as_it_was = turn()
    assert check(as_it_was, 120, 2, 100, ("warm",)) is as_it_was
    check(turn(cached={"hot": 60, "warm": 40}), 120, 2, 100, ("hot", "warm"))
    check(turn(cached={}, load_bytes=0), 120, 2, 0)


@pytest.mark.parametrize(
    "changes",
    [
        {"prompt": 121},
        {"generated": 1},
        {"token_ids": [1]},
        {"cached": {"warm": 99}},
        {"cached": {"hot": 100}},
        {"cached": {}},
        {"load_bytes": 0},
    ],
)
def test_a_turn_that_is_something_else(changes: dict[str, object]) -> None:
    with pytest.raises(WrongTurn):
        check(turn(**changes), 120, 2, 100, ("warm",))


def test_hot_kv_that_was_read_from_disk_is_refused() -> None:
    with pytest.raises(WrongTurn, match="read 9 bytes"):
        check(turn(cached={"hot": 100}), 120, 2, 100, ("hot", "warm"))

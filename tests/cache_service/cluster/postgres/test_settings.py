"""Which servers are refused: those that could lose what they have acknowledged, as far as the operator minds."""

from __future__ import annotations

import pytest

from cache_service.cluster.postgres.settings import Survives, _problem, _Server

GOOD = _Server(170_004, "UTF8", "on", "ANY 1 (a, b)", "on")


@pytest.mark.parametrize("survives", list(Survives))
def test_a_server_with_a_synchronous_standby_is_taken(survives: Survives) -> None:
    for waits in ("on", "remote_apply", "remote_write"):
        assert _problem(GOOD._replace(synchronous_commit=waits), survives) == ""


@pytest.mark.parametrize(
    ("server", "refused", "advice"),
    [
        (GOOD._replace(version=130_020), list(Survives), "version 14 or newer"),
        (GOOD._replace(encoding="SQL_ASCII"), list(Survives), "ENCODING 'UTF8'"),
        (GOOD._replace(synchronous_commit="off"), [Survives.SERVER, Survives.CRASH], "set it to on"),
        (GOOD._replace(synchronous_commit="local"), [Survives.SERVER, Survives.CRASH], "set it to on"),
        (GOOD._replace(fsync="off"), [Survives.SERVER, Survives.CRASH], "fsync = off"),
        (GOOD._replace(standbys=" "), [Survives.SERVER], "synchronous_mode_strict"),
    ],
)
def test_a_server_that_could_lose_turns_is_refused_with_advice(
    server: _Server, refused: list[Survives], advice: str
) -> None:
    for survives in Survives:
        problem = _problem(server, survives)
        assert bool(problem) == (survives in refused)
        assert advice in problem or not problem

"""Which servers are refused: those that could lose what they have acknowledged, as far as the operator minds."""

from __future__ import annotations

from typing import get_args

import pytest

from cache_service.cluster.postgres.settings import _problem, _Server
from cache_service.settings import Survives

GOOD = _Server(170_004, "UTF8", "on", "ANY 1 (a, b)", "on")


@pytest.mark.parametrize("survives", get_args(Survives))
def test_a_server_with_a_synchronous_standby_is_taken(survives: Survives) -> None:
    for waits in ("on", "remote_apply", "remote_write"):
        assert _problem(GOOD._replace(synchronous_commit=waits), survives) == ""


@pytest.mark.parametrize(
    ("server", "refused", "advice"),
    [
        (GOOD._replace(version=130_020), get_args(Survives), "version 14 or newer"),
        (GOOD._replace(encoding="SQL_ASCII"), get_args(Survives), "ENCODING 'UTF8'"),
        (GOOD._replace(synchronous_commit="off"), ("server", "crash"), "set it to on"),
        (GOOD._replace(synchronous_commit="local"), ("server", "crash"), "set it to on"),
        (GOOD._replace(fsync="off"), ("server", "crash"), "fsync = off"),
        (GOOD._replace(standbys=" "), ("server",), "synchronous_mode_strict"),
    ],
)
def test_a_server_that_could_lose_turns_is_refused_with_advice(
    server: _Server, refused: tuple[Survives, ...], advice: str
) -> None:
    for survives in get_args(Survives):
        problem = _problem(server, survives)
        assert bool(problem) == (survives in refused)
        assert advice in problem or not problem

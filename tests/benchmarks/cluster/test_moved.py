"""The benchmark of agents that moved: where the KV of a turn came from, at a small size, and its tables."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from benchmarks.cluster import moved, object_server
from benchmarks.cluster.computing_nodes import ComputingNode
from benchmarks.cluster.machines import Process
from benchmarks.cluster.moved import COMPUTED, HOT, PEER, S3, WARM
from benchmarks.turns import Turn, WrongTurn
from tests import postgres
from tests.full_matrix import FULL
from tests.system.forked import Forked

LENGTH = 512


class ForkedNode(ComputingNode):
    """One whose processes begin with their libraries."""

    def begun(self, command: tuple[str, ...], log: Path, environment: dict[str, str]) -> Process:
        return Forked(command, log, environment)


@pytest.mark.skipif(not FULL, reason="takes most of a minute; AGENTMEM_FULL_MATRIX=1 runs it")
async def test_each_turn_takes_its_memory_from_where_it_should() -> None:
    try:
        postgres.programs()
    except postgres.NoServer as problem:
        pytest.skip(str(problem))
    arguments = moved.parser().parse_args(["--lengths", str(LENGTH), "--samples", "1"])
    found = await moved.measure(arguments, ForkedNode)
    assert list(found["ways"]) == [COMPUTED, S3, PEER, WARM, HOT]
    reused = {way: found["ways"][way][str(LENGTH)]["reused"]["median"] for way in found["ways"]}
    assert reused[COMPUTED] == 0 and reused[WARM] == reused[HOT] == 1.0
    assert found["ways"][COMPUTED][str(LENGTH)]["times"]["median"] == 1.0


def test_a_turn_of_another_kind_ends_the_run() -> None:
    right = Turn(prompt=650, cached={"remote": 512}, first=1.0)
    assert moved._checked(right, PEER, 600) is right
    for way, cached in ((COMPUTED, {"remote": 512}), (PEER, {"warm": 512}), (HOT, {"warm": 600}), (WARM, {})):
        with pytest.raises(WrongTurn):
            moved._checked(Turn(prompt=650, cached=cached), way, 600)


def test_tables() -> None:
    one = {COMPUTED: (2.0, 0.0), PEER: (0.5, 1.0), WARM: (0.25, 1.0), HOT: (0.2, 1.0)}
    short = {COMPUTED: (0.2, 0.0), PEER: (0.2, 0.0), WARM: (0.1, 1.0), HOT: (0.1, 1.0)}
    notes = {
        (way, length): [{"first": first, "reused": reused}] * 2
        for length, ways in ((1000, short), (8000, one))
        for way, (first, reused) in ways.items()
    }
    asked = {"model": "demo", "lengths": [1000, 8000], "samples": 2, "remote": ""}
    first, times, reused = moved.tables(moved.figures(asked, notes))
    assert first.columns == ("", "1,000 tokens", "8,000 tokens") and len(first.rows) == 4
    assert "without object storage" in first.note
    assert times.rows[0][1:] == ("1.0x (1.0–1.0) (computed by choice)", "4.0x (4.0–4.0)")
    assert reused.rows[0][1:] == ("0 %", "100 %")


def test_without_a_server_of_objects_they_are_left_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(object_server, "installed", lambda: False)
    with moved.objects(argparse.Namespace(remote="", remote_endpoint="")) as storage:
        assert storage is None
    assert "give --remote, or install moto" in capsys.readouterr().err
    with moved.objects(argparse.Namespace(remote="s3://b/p/", remote_endpoint="https://s3:1")) as storage:
        assert storage is not None and storage[1][0].startswith("--remote=s3://b/p/")
        assert storage[1][1] == "--remote-endpoint=https://s3:1"

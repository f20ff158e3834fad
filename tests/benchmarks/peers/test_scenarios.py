"""The scenarios on real servers at tiny sizes: what servers say that they reused, and that every answer counts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import results, smollm2
from benchmarks.packages import Unavailable
from benchmarks.peers import command
from benchmarks.peers.report import tables
from benchmarks.peers.servers import found_llama_server
from tests.full_matrix import FULL

SIZES = "--samples 1 --context 300 --new 16 --generated 6 --turns 3 --agents 3 --holds 1 --rounds 1"
KEPT = 300
"""Tokens that each of their turns but the first has computed before."""


async def measured(monkeypatch: pytest.MonkeyPatch, folder: Path, arguments: str) -> dict[str, Any]:
    monkeypatch.setattr(results, "RESULTS", folder)
    monkeypatch.setenv("AGENTMEM_WORKER_QUALITY_CHECK", "false")
    status = await command.main(command.parser().parse_args(f"{SIZES} --output try {arguments}".split()))
    assert status in (0, 1)
    found: dict[str, Any] = json.loads((folder / "try.json").read_text())["figures"]
    for scenario, samples in found["scenarios"].items():
        for server, each in samples.items():
            assert [sample["problems"] for sample in each] == [[]], f"{scenario} of {server}"
            assert all(
                value is not None and value > 0 for one in each for row in one["figures"].values() for value in row
            )
    assert len(tables(found)) == 1 + len(found["scenarios"])
    return found


def cached(found: dict[str, Any], scenario: str, server: str) -> list[int]:
    return [turn["cached"] for sample in found["scenarios"][scenario][server] for turn in sample["turns"]]


@pytest.mark.slow
async def test_agentmem_and_mlx_lm(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    scenarios = "--scenarios growing restart"
    found = await measured(monkeypatch, tmp_path, f"--model demo {scenarios}")
    assert found["missing"].keys() == {"llama.cpp"}
    for server in ("agentmem", "mlx_lm.server"):
        assert [count >= KEPT for count in cached(found, "growing", server)] == [False, True, True]
    first = {server: each[0]["turns"][0]["prompt"] for server, each in found["scenarios"]["growing"].items()}
    assert len(set(first.values())) == 1, "the same prompt is the same tokens to all"
    assert min(first.values()) > KEPT
    assert [count >= KEPT for count in cached(found, "restart", "agentmem")] == [False, True, True]
    assert [count >= KEPT for count in cached(found, "restart", "mlx_lm.server")] == [False, True, False]


@pytest.mark.skipif(not FULL, reason="takes half a minute; AGENTMEM_FULL_MATRIX=1 runs it")
async def test_more_agents_than_memory_and_agents_at_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    found = await measured(monkeypatch, tmp_path, "--model demo --scenarios together round-robin")
    assert [count >= KEPT for count in cached(found, "round-robin", "agentmem")] == [False] * 3 + [True] * 3
    assert [count >= KEPT for count in cached(found, "round-robin", "mlx_lm.server")] == [False] * 6
    for server in ("agentmem", "mlx_lm.server"):
        assert [count >= KEPT for count in cached(found, "together", server)] == ([False] * 3 + [True] * 3) * 2


async def test_llama_cpp(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    if isinstance(program := found_llama_server(None), str):
        pytest.skip(program)
    try:
        smollm2.gguf()
    except Unavailable as problem:
        pytest.skip(str(problem))
    found = await measured(monkeypatch, tmp_path, f"--servers llama.cpp --llama-server {program[0]}")
    assert [count >= KEPT for count in cached(found, "growing", "llama.cpp")] == [False, True, True]
    assert [count >= KEPT for count in cached(found, "restart", "llama.cpp")] == [False, True, False]

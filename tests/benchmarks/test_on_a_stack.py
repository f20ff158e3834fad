"""Benchmarks that measure a stack, on one that they share, at sizes of seconds: turns are what they should be.

Their programs start a stack each, with the settings that are here for all of them together. Names of agents are theirs,
so lengths that become names differ from test to test. The last test kills everything.
"""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from benchmarks import children, page, results
from benchmarks.known_agents import KnownAgents
from benchmarks.live import LiveStack, running
from benchmarks.models import DEMO, kv_bytes_per_token
from benchmarks.peers.servers import end_tokens
from benchmarks.prompts import NEW_TOKENS, Prompts
from benchmarks.restart import KEPT, Restarts
from benchmarks.ttft import command as ttft
from tests.full_matrix import FULL

pytestmark = pytest.mark.asyncio(loop_scope="module")
long = pytest.mark.skipif(not FULL, reason="takes half a minute; AGENTMEM_FULL_MATRIX=1 runs it")

POOL_TOKENS = 8 * 256
TIMES_OF_TTFT = {"cold", "warm", "load", "raw", "hot", "mlx_lm_cold", "mlx_lm_plain", "mlx_lm_4_bit"}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack() -> AsyncIterator[LiveStack]:
    environment = {
        "AGENTMEM_WORKER_QUALITY_CHECK": "false",
        "AGENTMEM_WORKER_MIN_RESTORE_TOKENS": "1",
        "AGENTMEM_WORKER_POOL_BYTES": str(POOL_TOKENS * kv_bytes_per_token(DEMO)),
    }
    async with running(environment=environment, metrics=True) as stack:
        yield stack


@pytest.fixture(autouse=True)
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(results, "RESULTS", tmp_path)
    return tmp_path


def figures(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text())["figures"]
    return found


@pytest.mark.slow
async def test_page(stack: LiveStack, written: Path) -> None:
    asked = {"model": "demo", "agents": 2, "tokens": 40, "stored": 3}
    found = await page.rounds(stack, asked, end_tokens(DEMO), 1, "try")
    assert figures(written / "try.json.unfinished") == json.loads(results.dump(found))
    [sample] = found["samples"][page.WITH]
    assert sample["requests"] > 100
    assert sample["overviews"] >= 1
    assert page.tables(found)


@pytest.mark.slow
async def test_ttft_after_a_kill(stack: LiveStack, written: Path) -> None:
    arguments = ttft.parser().parse_args(["--lengths", "310", "--samples", "0", "--output", "try"])
    prompts = Prompts(DEMO)
    async with children.started("benchmarks.ttft.in_process", str(DEMO), str(written)) as child:
        await ttft.Bench(KnownAgents(stack, prompts, NEW_TOKENS), child, prompts, written, arguments).run()
    all_of_it = figures(written / "try.json.unfinished")
    [(length, found)] = all_of_it["lengths"].items()
    assert length == "310"
    assert found.keys() >= TIMES_OF_TTFT
    assert {name for name in TIMES_OF_TTFT if len(found[name]["samples"]) != 1} == set()
    # 310 tokens of 960 bytes and two headers; mlx-lm's float32 takes 6144 bytes a token.
    assert 310 * 960 < found["bytes"]["agentmem"] < 310 * 960 + 8192
    assert 310 * 6144 < found["bytes"]["plain"] < 310 * 6144 + 16384
    assert (all_of_it["page_cache_left"] <= ttft.MOST_RESIDENT) == ("dropped" in found)


@long
async def test_restart_which_ends_the_stack(stack: LiveStack, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTMEM_WORKER_QUALITY_CHECK", "false")
    restarts = Restarts(stack.root, "demo", agents=2, tokens=300, context=1024, new=16)
    try:
        await restarts.create(stack)
        found = (await restarts.sample((KEPT,)))[KEPT]
    finally:
        await restarts.stop()
    assert [agent["cached"] for agent in found["agents"]] == [{"warm": 300}] * 2
    assert all(agent["load_bytes"] > 300 * 960 for agent in found["agents"])
    assert found["ready"] < found["first_answered"] < found["all_answered"]

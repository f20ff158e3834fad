"""The memory benchmark's command: what it measures is what it computes, and it says so where it is not."""

import json
from pathlib import Path

import pytest

from benchmarks import results
from benchmarks.memory import command


@pytest.mark.slow
async def test_one_hybrid_model_through_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(results, "RESULTS", tmp_path)
    await command.main(["gpt-oss-20b"], [1024, 65536], 1024, 100_000_000, "memory-test")
    figures = json.loads((tmp_path / "memory-test.json").read_text())["figures"]
    row = figures["models"]["gpt-oss-20b"]
    assert list(row["measured"]["fp16"]["agents"]) == ["1024"], "what is larger than the budget is not measured"
    for dtype, bits in (("bfloat16", 4.5), ("float32", 5.0)):
        pool = row["measured"][dtype]["pool"]
        assert pool["agents"] == row["arithmetic"][dtype]["pool"]["agents"] > 1
        assert row["measured"][dtype]["agents"]["1024"]["bytes"] == 12 * 1024 * (1024 + 384) * bits / 8
    assert [table.title for table in command.tables(figures)] == [
        "KV of one agent: fp16 → Q4 with 16-bit scales",
        "Agents of 1024 tokens in 0.1 GB",
    ]
    assert "gpt-oss-20b" in capsys.readouterr().out


async def test_a_budget_for_no_agent_is_refused_before_anything_is_measured() -> None:
    with pytest.raises(SystemExit, match="raise --budget"):
        await command.main(["llama-3.1-8b"], [4096], 8192, 1_000_000, "unused")


def test_a_difference_is_an_error() -> None:
    command.check("bytes", 1019, 1000, 0.02)
    with pytest.raises(RuntimeError, match="bytes: measured 1021, and by arithmetic it is 1000"):
        command.check("bytes", 1021, 1000, 0.02)
    with pytest.raises(RuntimeError, match="agents"):
        command.check("agents", 3, 4)

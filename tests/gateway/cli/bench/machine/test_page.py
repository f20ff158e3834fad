from __future__ import annotations

import copy
from typing import Any

import pytest

from gateway.cli.bench.machine.page import head, page, tracker

TOO_LONG = "would take about 3 min, of which 40 s are left"
MODEL = {
    "name": "mlx-community/Some-4bit",
    "architecture": "llama",
    "dtype": "bfloat16",
    "weight_bytes": 4_500_000_000,
    "kv_bits": "4",
    "kv_scheme": "balanced",
    "kv_bits_reason": "",
    "context_length": 32768,
    "unmeasured": False,
    "full_layers": 32,
    "kv_heads": 8,
    "k_head_dim": 128,
    "v_head_dim": 128,
    "kv_bytes_per_token": 36864,
    "attention_paths": [{"phase": "decode", "path": "packed", "relative_error": 0.0012, "note": "rows | of 1"}],
    "kv_bits_measured": [
        {"kv_bits": "4", "kl_divergence": 0.01, "kl_divergence_p99": 0.1, "bytes_per_token": 36864, "good": True},
        {"kv_bits": "8", "kl_divergence": "Infinity", "kl_divergence_p99": 0.1, "bytes_per_token": 1, "good": False},
    ],
    "memory": {
        **dict.fromkeys(
            (f"{name}_bytes" for name in ("device", "usable", "weight", "activation", "pool", "batch")), 10**9
        ),
        "agents_4k": 40,
        "pool_tokens": 163_840,
    },
}


def reused(tier: str, share: float = 0.97) -> dict[str, Any]:
    return {"reused": int(4100 * share), "of": 4100, "tiers": {tier: int(4100 * share)} if tier else {}}


def first_tokens(cold: float, warm: float | None, hot: float, tier: str) -> dict[str, Any]:
    sample = {"prompt": 4096, "cold": cold, "hot": hot, "hot_reused": reused(tier)}
    sample |= {"warm": warm, "warm_reused": reused("warm")} if warm else {}
    return {
        "4096": {"samples": [sample], "notes": []},
        "16384": {"skipped": TOO_LONG},
    }


def of_server(server: str, number: int, times: float, warm: float | None) -> list[dict[str, Any]]:
    ours = warm is not None
    start: dict[str, Any] = {"ready": 2.0 * times, "first_answer": 3.0 * times, "of_it_the_turn": 0.3 * times}
    start |= {"prompt": 4200} if number == 2 else {}
    start |= {"stages": {"process": 1.0, "read": 0.5}} if ours else {"weights": "a copy"}
    paced = {"tokens_per_second": [30.0 / times, None], "first": [0.1]}
    parts = {
        "start": start,
        **({"model": {"seconds": 12.0, "stages": {"measure": 9.0}}} if ours and number == 1 else {}),
        "first tokens": first_tokens(4.0 * times, warm, 0.2 * times, "hot" if ours else ""),
        "answers": {str(agents): {"tokens_per_second": 20.0 * agents / times} for agents in (1, 4, 8)},
        "work": {
            **{"agents": 8, "context": 2000, "turns": 6, "generated": 100, "new": 60, "reused_share": 0.95},
            **{"tokens_per_second": 120 / times, "first_p50": 0.1 * times, "first_p95": 0.3 * times},
        },
        **({"paced": {"back_to_back": paced, "paced": paced}} if number == 1 else {}),
    }
    memory = {"available": 10**9, "swap_used": number * 10**6, "wired": 5 * 10**9}
    return [
        {"part": part, "server": server, "round": number, "found": found, "seconds": 1.0, "memory": memory}
        for part, found in parts.items()
    ]


def whole() -> dict[str, Any]:
    doctor = {
        "findings": [{"state": "warning", "check": "memory", "found": "little is free", "advice": "", "facts": {}}]
    }
    parts = [{"part": "doctor", "server": "", "round": 1, "found": doctor, "seconds": 1.0}]
    for number in (1, 2):
        parts += of_server("agentmem", number, 1.0, 0.4) + of_server("mlx-lm", number, 2.0, None)
    return {
        **{"format": 1, "date": "2026-11-30", "minutes": 10.0, "settings": {"AGENTMEM_WORKER_WIRED": "off"}},
        "machine": {"chip": "Apple M2 Max", "cores": 12, "memory_bytes": 64 << 30, "load_before": 1.25},
        "versions": {"agentmem": "0.1.0", "python": "3.11.9, arm64", "mlx": "0.32.4", "mlx-lm": "0.32.2"},
        **{
            "model": copy.deepcopy(MODEL),
            "parts": parts,
            "warnings": {"agentmem": ["WARNING a kernel"]},
            "seconds": 600.0,
        },
    }


def test_an_nvidia_gpu_is_named() -> None:
    found = whole()
    found["model"]["device"] = "NVIDIA H200; mlx 0.32.4"
    assert page(found).startswith("# Agentmem on NVIDIA H200, 64 GiB")
    found["model"]["device"] = "AMD EPYC, OpenBLAS; mlx 0.32.4"
    assert page(found).startswith("# Agentmem on Apple M2 Max, 64 GiB")


def test_both_servers_beside_each_other() -> None:
    text = page(whole())
    for line in (
        "# Agentmem on Apple M2 Max, 64 GiB",
        "Model: mlx-community/Some-4bit, llama, bfloat16, weights 4.5 GB, KV in 4 bits, context 32,768.",
        "| first start, to an answer | 3.00 s | 6.00 s | 2x |",
        "| later start, to an answer of an agent of 4,200 tokens | 3.00 s | 6.00 s | 2x |",
        "| 4,096 tokens: TTFT | 4.00 s (4.00–4.00) | 8.00 s (8.00–8.00) | 2x |",
        "| 4,096 tokens: next turn, from disk | 400 ms (400–400) | – |  |",
        "| 4,096 tokens: prompt tokens/s | 1,024 (1,024–1,024) | 512 (512–512) | 2x |",
        "| tokens/s, 8 agents at once | 160 (160–160) | 80.0 (80.0–80.0) | 2x |",
        "| turns 10 s apart: tokens/s, 3 turns | 30.0 | 15.0 | 2x |",
        "| memory | 64 GiB |",
        "Its weights are a copy.",
        "| load before | 1.2 |",
        "| most memory wired | 5.0 GB |",
        "| swap used, at first and at most | 1.0 MB, 2.0 MB |",
        "| AGENTMEM_WORKER_WIRED | off |",
        "- memory (warning): little is free",
        "| agentmem, first | 2.0 s | 3.0 s | its processes 1.0 s, reading the weights 0.5 s |",
        "| new model, until it is measured | 12.0 s |  | measuring how few bits its KV needs 9.0 s |",
        "| decode | packed | 0.0012 | rows / of 1 |",
        "| 8 | Infinity | 0.1 | 1 | no |",
        "| KV of a token | 36.9 kB, 0.28 of 16 bits |",
        "| agents of 16,384 tokens in memory | 10 |",
        f"- agentmem, first tokens, 16,384 tokens: skipped: {TOO_LONG} (in both rounds)",
        "- agentmem's log: WARNING a kernel",
    ):
        assert line in text.splitlines(), line
    assert "16,384 tokens: TTFT" not in text, "a row without a figure is left out"
    assert "demo model" not in text and "Other programs" not in text
    short = head(text)
    assert "times as fast" in short and "## The machine" not in short


@pytest.mark.parametrize("count", range(24))
def test_a_run_that_ends_early_has_a_page(count: int) -> None:
    found = whole()
    found["parts"] = [{**part} for part in found["parts"][:count]]
    found["model"] = {"name": "some", "is_demo": True}
    for part in found["parts"][-1:]:
        part["error"] = "Boom: it\nbroke"
        del part["found"]
    text = page({**found, "running": {"part": "work", "server": "mlx-lm", "round": 1}, "stopped": True})
    assert "**Stopped by the user: parts are missing.**" in text and "demo model" in text
    assert "**Not complete: mlx-lm, work, round 1 was running when this was written.**" in text
    assert ("error: Boom: it / broke" in text) == (count > 0)


def test_lengths_over_the_context_have_no_capacity() -> None:
    found = whole()
    found["model"]["context_length"] = 8192
    text = page(found)
    assert "| agents of 4,096 tokens in memory | 40 |" in text and "16,384 tokens in memory" not in text
    found["model"]["context_length"] = 2048
    assert "tokens in memory" not in page(found)


def test_a_turn_that_did_not_come_from_where_it_should_is_named() -> None:
    found = whole()
    sample = next(each for each in found["parts"] if each["part"] == "first tokens")["found"]["4096"]["samples"][0]
    sample["warm_reused"] = reused("hot")
    sample["hot_reused"] = reused("hot", 0.5)
    missing = page(found).partition("## Failed")[2]
    assert "4,096 tokens: a next turn (warm) took its memory from hot" in missing
    assert "4,096 tokens: a next turn (hot) reused only 50% of its prompt" in missing


def test_a_busy_machine_is_named_at_the_top() -> None:
    found = whole()
    found["machine"]["load_before"] = 6.5
    assert "**Other programs computed when this began (load 6.5)" in page(found).partition("## Beside")[0]


def test_where_to_send_it() -> None:
    assert "Send both files" in page(whole())
    urls = ["Homepage, https://example.org", "Issues, https://example.org/issues"]
    assert tracker(urls) == "https://example.org/issues"
    assert tracker(urls[:1]) == ""

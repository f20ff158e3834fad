from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from agentmem import errors
from agentmem.load_stages import LoadStage
from agentmem.v1 import model_pb2
from gateway.cli import models
from gateway.cli.main import main
from tests.gateway.conftest import Command
from tests.gateway.scripted import ScriptedWorker
from tests.gateway.secured import add_key, secured

STAGES = [("wait", 0.0), ("read", 0.0), ("read", 0.05), ("read", 0.5), ("pool", 0.0)]


async def test_list(worker: ScriptedWorker, agentmem: Command) -> None:
    worker.models[0].weight_bytes = 27_000_000
    worker.models[1].error = "it is \x1b[2J broken"
    listed = await agentmem("models")
    assert (await agentmem("models", "list")).output == listed.output
    header, demo, large, error = listed.output.splitlines()
    assert header.split() == ["model", "state", "context", "weights", "4K", "agents", "note"]
    assert demo.split() == ["demo", "loaded", "4,096", "27.0", "MB", "default"]
    assert large.split() == ["org/large", "registered"]
    assert error == "org/large: it is \\x1b[2J broken"
    told = json.loads((await agentmem("models", "--json")).output)
    assert [(one["model_id"], one["state"], one["pinned"]) for one in told] == [
        ("demo", "loaded", False),
        ("org/large", "registered", False),
    ]


async def test_a_load_is_noted(worker: ScriptedWorker, agentmem: Command) -> None:
    worker.models[0].progress.CopyFrom(model_pb2.LoadProgress(stage="read", share=0.4))
    assert "default; reading the weights, 40 %" in (await agentmem("models")).output
    (demo, _) = json.loads((await agentmem("models", "--json")).output)
    assert (demo["progress"]["stage"], demo["progress"]["share"]) == ("read", 0.4)


async def test_show(worker: ScriptedWorker, agentmem: Command) -> None:
    worker.models[1].memory.agents_4k = 12
    shown = (await agentmem("models", "show", "org/large")).output
    assert shown.split()[:2] == ["model_id", "org/large"]
    assert ["memory.agents_4k", "12"] in [line.split() for line in shown.splitlines()]
    told = json.loads((await agentmem("models", "show", "org/large", "--json")).output)
    assert (told["model_id"], told["memory"]["agents_4k"]) == ("org/large", 12)
    missing = await agentmem("models", "show", "nobody")
    assert missing.exit_code == 1
    assert missing.output == "Error: model 'nobody' does not exist; registered are demo, org/large\n"
    await agentmem("models", "show")
    assert worker.requests[-1].model_id == ""


async def test_load(worker: ScriptedWorker, agentmem: Command) -> None:
    worker.stages = STAGES
    worker.models[0].weight_bytes = 27_000_000
    worker.models[0].memory.agents_4k = 1500
    loaded = await agentmem("models", "load", "demo")
    assert (loaded.exit_code, loaded.output.splitlines()) == (
        0,
        [
            "waiting for its turn, and for others to make room",
            "reading the weights",
            "reading the weights: 50%",
            "taking memory for KV",
            "demo is loaded: 27.0 MB of weights; 1,500 agents of 4,096 tokens fit hot",
        ],
    )
    assert worker.requests[-1] == model_pb2.LoadModelRequest(model_id="demo")
    *steps, last = map(json.loads, (await agentmem("models", "load", "demo", "--json")).output.splitlines())
    assert [(step["stage"], step["progress"]) for step in steps] == STAGES
    assert (last["stage"], last["progress"], last["model"]["model_id"]) == ("ready", 1.0, "demo")


async def test_a_load_that_fails(worker: ScriptedWorker, agentmem: Command) -> None:
    worker.stages = STAGES[:1]
    worker.load_error = errors.FailedPrecondition("model 'demo' needs 5 GB more; set --pool-bytes lower")
    failed = await agentmem("models", "load", "demo")
    assert failed.exit_code == 1
    assert failed.stderr == "Error: model 'demo' needs 5 GB more; set --pool-bytes lower\n"
    assert "is loaded" not in failed.output


async def test_unload(worker: ScriptedWorker, agentmem: Command) -> None:
    assert (await agentmem("models", "unload", "demo")).stdout == "demo was unloaded, freed 1 B\n"
    told = await agentmem("models", "unload", "demo", "--json")
    assert json.loads(told.stdout) == {"model_id": "demo", "freed_bytes": 1}
    worker.freed_bytes = 0
    assert (await agentmem("models", "unload", "demo")).stdout == "demo was not loaded\n"


@pytest.mark.parametrize("command", ["load", "unload"])
async def test_only_admins_load_and_unload(
    worker: ScriptedWorker, run_dir: Path, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run(key: str) -> Any:
        monkeypatch.setenv("AGENTMEM_API_KEY", key)
        given = ["models", command, "demo", "--gateway", gateway.addresses["grpc"]]
        return await asyncio.to_thread(CliRunner().invoke, main, given)

    plain, admin = add_key(run_dir), add_key(run_dir, admin=True)
    async with secured(run_dir) as gateway:
        refused, served = await run(plain), await run(admin)
    assert (refused.exit_code, served.exit_code) == (1, 0)
    assert "needs a key with admin = true; `agentmem keys create --admin` makes one" in refused.output


DONE = ("ready", 1.0)
WORDS = {stage: LoadStage(stage).words for stage in ("wait", "fetch", "read")}


def lines(*steps: tuple[str, float]) -> list[str]:
    written: list[str] = []
    report = models.lines(written.append)
    for stage, share in steps:
        report(stage, share)
    return written


@pytest.mark.parametrize(
    ("steps", "told"),
    [
        (
            [
                ("wait", 0.0),
                ("fetch", 0.3),
                ("fetch", 0.35),
                ("fetch", 0.4),
                ("wait", 0.0),
                ("read", 0.0),
                ("ready", 1.0),
            ],
            [WORDS["wait"], f"{WORDS['fetch']}: 30%", f"{WORDS['fetch']}: 40%", WORDS["wait"], WORDS["read"]],
        ),
        ([("wait", 0.0), ("fetch", 1.0), ("wait", 0.0)], [WORDS["wait"]]),  # what is done at once is not told
        ([("war\x1bm up", 0.0)], ["war\\x1bm up"]),  # of a newer worker
    ],
)
def test_lines(steps: list[tuple[str, float]], told: list[str]) -> None:
    assert lines(*steps) == told


@given(st.lists(st.floats(0, 1), max_size=300))
def test_a_stage_has_few_lines(shares: list[float]) -> None:
    assert len(lines(*(("read", share) for share in sorted(shares)))) <= 11


@pytest.mark.parametrize(
    ("bits", "recommended", "good", "note"),
    [
        ("4", "4", {"4"}, "default; adapter"),
        ("3", "4", {"4"}, 'default; adapter; kv_bits = "4" recommended'),
        ("8", "", set(), "default; adapter; loses quality with quantized KV"),
        ("4", "", None, "default; adapter"),
    ],
)
def test_notes(bits: str, recommended: str, good: set[str] | None, note: str) -> None:
    model = model_pb2.Model(model_id="m+lora", is_default=True, kv_bits=bits, recommended_kv_bits=recommended)
    for each in ("3", "4", "8") if good is not None else ():
        model.kv_bits_measured.add(kv_bits=each, good=each in (good or ()))
    notes = models.models_table([model]).columns[-1]
    assert [str(cell) for cell in notes.cells] == [note]

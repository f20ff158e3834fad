"""The screen, and the command where there is little to see. `tests/system/test_top.py` has the rest."""

from __future__ import annotations

import asyncio
import io
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from gateway.cli.main import main
from gateway.cli.top import Screen, duration, rate
from tests.gateway.background import served
from tests.gateway.http.example import at_work
from tests.gateway.secured import add_key

DOWN = "nothing listens there"
AT_WORK = at_work()
NO_WORKER = at_work(worker=DOWN)


def texts(overview: Any, width: int) -> list[str]:
    file = io.StringIO()
    Console(file=file, width=width, highlight=False, markup=False).print(Screen(overview))
    return [line.rstrip() for line in file.getvalue().splitlines()]


@given(st.sampled_from([AT_WORK, NO_WORKER, at_work(gateway=DOWN, worker=DOWN, store=DOWN)]), st.integers(20, 250))
def test_it_fits_every_width(overview: Any, width: int) -> None:
    wide = texts(overview, 250)
    assert texts(overview, width) == [line[:width].rstrip() for line in wide], "the beginnings of lines"
    assert not any("…" in line for line in wide)


def test_a_usual_terminal() -> None:
    shown = texts(AT_WORK, 80)
    head = shown.pop(0)
    assert [line for line in shown if line] == [
        "process  state  req/s  failed/s   memory   CPU  uptime  version",
        "gateway  up        30       3.5  84.2 MB  25 %     2 h    0.1.0",
        "worker   up         0         0  84.2 MB   0 %     2 h    0.1.0",
        "store    up         0         0  84.2 MB   0 %     2 h    0.1.0",
        "model         state       running  waiting  decode/s  prefill/s  cache hit  pool",
        "demo          loaded            3        1       250        200       90 %  23 %",
        "llama-3.1-8b  not loaded        0        0         0          0          –     –",
        "model  latency            p50     p95     p99  measured",
        "demo   TTFT, hot        18 ms   24 ms   25 ms        20",
        "demo   TTFT, computed   1.8 s   2.4 s   2.5 s         1",
        "demo   between tokens  3.8 ms  4.9 ms  5.0 ms       499",
        "agents         hot 12 · none 3 · remote 7 · warm 40",
        "disk           blocks 900.0 MB · ledger 5.0 MB · windows 60.0 MB",
        "disk free      80.0 GB, floor 5.0 GB · KV's limit 1.0 GB",
        "KV             loads 12.0 MB/s · stores 0 B/s",
        "evicted        capacity 5 · ttl 1 · capacity (pool) 4",
        "damaged files  digest 1 · truncated 2",
        "agent  state      for  model  namespace",
        "ada    answering  3 s  demo   default",
        "bob    waiting    0 s  demo   default",
    ]
    assert head.startswith("agentmem top · ")
    assert head.endswith(" · last 2.0 s")


def test_the_documentation_shows_it() -> None:
    root = Path(__file__).parents[3]
    shown = texts(AT_WORK, 80)
    samples = [
        sample.splitlines()
        for page in [root / "README.md", *sorted((root / "docs").rglob("*.md"))]
        for sample in re.findall(r"```\w*\n(agentmem top · .*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    ]
    assert samples
    for sample in samples:
        assert sample[1:] == shown[1 : len(sample)]


def test_what_is_down_is_said_with_the_reason() -> None:
    shown = texts(NO_WORKER, 80)
    assert "worker: nothing listens there" in shown
    assert any(line.split()[:2] == ["worker", "down"] for line in shown)


def test_hostile_names_are_shown_and_not_obeyed() -> None:
    overview = at_work(store="x\x1b[2J\nand more")
    overview["turns_running"][0]["agent_id"] = "[bold]x\x1b[2J\n\t"
    text = "\n".join(texts(overview, 120))
    assert "[bold]x\\x1b[2J\\n\\t" in text
    assert "store: x\\x1b[2J\\nand more" in text
    assert "\x1b" not in text


@pytest.mark.parametrize(
    ("value", "expected"),
    [(0.0, "0"), (0.04, "0.04"), (3.21, "3.2"), (9.96, "10"), (12400.4, "12,400"), (None, "–")],
)
def test_rates(value: float | None, expected: str) -> None:
    assert rate(value) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [(0.00081, "0.8 ms"), (0.025, "25 ms"), (0.9999, "1.0 s"), (1.23, "1.2 s"), (300.0, "300 s"), (None, "–")],
)
def test_durations(value: float | None, expected: str) -> None:
    assert duration(value) == expected


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--http", "x"], "--http: 'x' is not HOST:PORT"),
        (["--interval", "0"], "Invalid value for '--interval'"),
        (["--client-key", "x"], "--client-cert and --client-key go together"),
        (["--ca", "no-such-file"], "--ca, --client-cert or --client-key: "),
    ],
)
def test_what_there_is_to_mend_is_said_before_anything_is_asked(arguments: list[str], told: str) -> None:
    said = CliRunner().invoke(main, ["top", *arguments])
    assert said.exit_code == 2
    assert f"Error: {told}" in said.stderr
    assert said.stdout == ""


def test_where_nothing_answers_that_is_said_and_what_to_do() -> None:
    said = CliRunner().invoke(main, ["top", "--http", "127.0.0.1:1", "--json"])
    assert (said.exit_code, said.stdout) == (1, "")
    assert said.stderr.startswith("Error: no gateway answers at http://127.0.0.1:1/v1/overview: ")
    assert "`agentmem up`" in said.stderr


def test_keys_and_a_line_of_json(tmp_path: Path) -> None:
    plain, admin = (add_key(tmp_path, admin=admin) for admin in (False, True))
    with served(keys=tmp_path / "keys.json") as gateway:
        command = ["top", "--once", "--json", "--interval", "1.1", "--http", gateway.url.removeprefix("http://")]
        refused = [CliRunner(env={"AGENTMEM_API_KEY": key}).invoke(main, command) for key in ("", plain)]
        told = CliRunner(env={"AGENTMEM_API_KEY": admin}).invoke(main, command)
    assert [each.exit_code for each in refused] == [1, 1]
    assert "asks for an API key; give one in AGENTMEM_API_KEY" in refused[0].stderr
    assert "admin" in refused[1].stderr
    [line] = told.stdout.splitlines()
    assert json.loads(line)["interval_seconds"] >= 1


@asynccontextmanager
async def answering(answer: bytes) -> AsyncIterator[str]:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"


@pytest.mark.parametrize(
    "answer",
    [
        b"\x00\x00\x18\x04\x00\x00\x00\x00\x00\r\n",
        b"HTTP/1.0 200 OK\r\n\r\n<html>",
        b"HTTP/1.0 200 OK\r\n\r\n[]",
        b'HTTP/1.0 200 OK\r\n\r\n{"a": 1}',
    ],
)
async def test_another_program(answer: bytes) -> None:
    async with answering(answer) as http:
        told = await asyncio.to_thread(CliRunner().invoke, main, ["top", "--http", http])
    assert (told.exit_code, "name the gateway's HTTP door with --http" in told.output) == (1, True), told.output

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from agentmem import errors
from gateway.app import Gateway
from tests.terminal import ALT_ENTER, BACKSPACE, CTRL_C, CTRL_D, ENTER, UP, Terminal, pasted, terminal

from ..scripted import ScriptedWorker, delta, for_ever, script, started

PROMPT = ">"
SUMMARY = "tokens/s"


@asynccontextmanager
async def chat(
    gateway: Gateway, data: Path, greeting: tuple[str, ...] = (), last: str = CTRL_D
) -> AsyncIterator[Terminal]:
    """A chat at its first prompt, which `last` ends."""
    words = ("-m", "gateway.cli.main", "chat", "bob", "--gateway", gateway.addresses["grpc"])
    async with terminal(*words, XDG_DATA_HOME=str(data)) as shown:
        await shown.until(*greeting, PROMPT)
        yield shown
        shown.type(last)
        assert await shown.ended() == 0


def said(worker: ScriptedWorker) -> list[str]:
    turns = [each for each in worker.requests if each.DESCRIPTOR.name == "GenerateRequest"]
    return [(each.append.messages.messages or each.messages.messages)[-1].content for each in turns]


@pytest.mark.slow
async def test_lines_are_edited_and_kept(worker: ScriptedWorker, gateway: Gateway, tmp_path: Path) -> None:
    async with chat(gateway, tmp_path, ("bob on demo, a new agent", "/help")) as shown:
        shown.type(f"hellp{BACKSPACE}o{ENTER}")
        await shown.until("Hello 🌍", SUMMARY, PROMPT)
        shown.type(f"one{ALT_ENTER}two{ENTER}")
        await shown.until("Hello 🌍", SUMMARY, PROMPT)
        shown.type(f"never sent{CTRL_C}")
        await shown.until("never sent", PROMPT)
        shown.type(f"  {ENTER}")
        await shown.until(PROMPT)
    assert said(worker) == ["hello", "one\ntwo"]
    history = tmp_path / "agentmem" / "chat_history"
    assert history.stat().st_mode & 0o777 == 0o600
    assert "never sent" not in history.read_text()
    history.chmod(0o644)
    async with chat(gateway, tmp_path, last=f"/bye{ENTER}") as shown:
        shown.type(f"{UP}{UP}{UP}{UP}{ENTER}")
        await shown.until("Hello 🌍", SUMMARY, PROMPT)
    assert said(worker)[2:] == ["hello"]
    assert history.stat().st_mode & 0o777 == 0o600


async def test_a_paste_is_one_message(worker: ScriptedWorker, gateway: Gateway, tmp_path: Path) -> None:
    async with chat(gateway, tmp_path) as shown:
        shown.type(pasted("def f():\n    return 1\n\n/bye\n") + ENTER)
        await shown.until("Hello 🌍", SUMMARY, PROMPT)
    assert said(worker) == ["def f():\n    return 1\n\n/bye"]


async def test_commands_are_not_for_the_agent(worker: ScriptedWorker, gateway: Gateway, tmp_path: Path) -> None:
    async with chat(gateway, tmp_path, last=f"/bye{ENTER}") as shown:
        shown.type(f"/help{ENTER}")
        await shown.until("/bye", "Ctrl-C", PROMPT)
        shown.type(f"/halp{ENTER}")
        await shown.until("there is no command /halp; did you mean /help?", PROMPT)
        shown.type(f"/etc/hosts is empty{ENTER}")
        await shown.until("Hello 🌍", SUMMARY, PROMPT)
    assert said(worker) == ["/etc/hosts is empty"]


async def test_ctrl_c_stops_the_answer_and_not_the_chat(
    worker: ScriptedWorker, gateway: Gateway, tmp_path: Path
) -> None:
    scripted = worker.script
    async with chat(gateway, tmp_path) as shown:
        worker.script = script((started(), delta("half an ans"), for_ever))
        shown.type(f"hi{ENTER}")
        await shown.until("half an ans")
        shown.type(CTRL_C)
        await shown.until("stopped", PROMPT)
        await asyncio.wait_for(worker.cancelled.wait(), 20)
        worker.script = scripted
        shown.type(f"again{ENTER}")
        await shown.until("Hello 🌍", SUMMARY, PROMPT)
    first, second = (each for each in worker.requests if each.DESCRIPTOR.name == "GenerateRequest")
    assert first.request_id != second.request_id, "the turn that was stopped is not sent again"


async def test_a_turn_that_fails_does_not_end_the_chat(
    worker: ScriptedWorker, gateway: Gateway, tmp_path: Path
) -> None:
    scripted = worker.script

    (tmp_path / "agentmem").touch()  # so there is no place for a history
    async with chat(gateway, tmp_path) as shown:
        worker.script = script([errors.FailedPrecondition("the context is full")])
        shown.type(f"hi{ENTER}")
        await shown.until("Error: the context is full", PROMPT)
        worker.script = scripted
        shown.type(f"{UP}{ENTER}")
        await shown.until("Hello 🌍", SUMMARY, PROMPT)
        shown.type(f"/help{ENTER}")
        await shown.until("no file", PROMPT)
    assert said(worker) == ["hi", "hi"]

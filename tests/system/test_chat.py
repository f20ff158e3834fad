import asyncio
from pathlib import Path

import pytest

from tests.system.stack import Stack
from tests.terminal import CTRL_C, CTRL_D, ENTER, terminal

TALK = """
import sys

from gateway.cli.chat import Conversation, talk_at_terminal
from gateway.cli.client import Client
conversation = Conversation(sys.argv[2], "tiny", options={"ignore_eos": True, "max_tokens": 3500})
talk_at_terminal(Client(sys.argv[1]), conversation)
"""
"""`agentmem chat` whose answers do not end by themselves."""


@pytest.mark.slow
async def test_an_answer_that_ctrl_c_stops_leaves_the_memory_as_it_was(stack: Stack, tmp_path: Path) -> None:
    client = await stack.client("gateway")
    before = await client.say("eve", "the boat is green", max_tokens=4)
    ledger = await stack.ledger("eve")
    cancelled = await stack.metric("worker", "agentmem_requests_finished_total", reason="cancelled")
    async with terminal("-c", TALK, f"127.0.0.1:{stack.ports['grpc']}", "eve", XDG_DATA_HOME=str(tmp_path)) as shown:
        await shown.until(">")
        shown.type(f"go on{ENTER}")
        async with asyncio.timeout(60):
            while not await stack.metric("worker", "agentmem_num_requests_running"):
                await asyncio.sleep(0.01)
        shown.type(CTRL_C)
        await shown.until("stopped", ">")
        async with asyncio.timeout(60):
            while await stack.metric("worker", "agentmem_num_requests_running"):
                await asyncio.sleep(0.01)
        assert await stack.metric("worker", "agentmem_requests_finished_total", reason="cancelled") == cancelled + 1
        assert await stack.ledger("eve") == ledger
        shown.type(CTRL_D)
        assert await shown.ended() == 0
    after = await client.say("eve", "And?", max_tokens=3)
    assert after.finished.version.version == before.finished.version.version + 1

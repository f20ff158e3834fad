from __future__ import annotations

import asyncio
import signal
import sys

import pytest

from agentmem import AsyncAgent, AsyncClient, Client, Message, errors
from tests.system.stack import Stack

LONG = {"max_tokens": 400, "ignore_eos": True}


async def said_alike(agent: AsyncAgent, other: AsyncAgent) -> None:
    mine, its = await agent.messages(), await other.messages()
    assert mine == its
    assert (await agent.info()).turns == (await other.info()).turns


@pytest.mark.slow
@pytest.mark.kills
@pytest.mark.parametrize("victim", ["worker", "gateway"])
async def test_what_is_killed_in_the_middle_of_an_answer(stack: Stack, victim: str) -> None:
    await stack.renew("gateway")
    outages = list[str]()
    async with AsyncClient(stack.grpc, on_outage=outages.append) as client:
        whole, broken = (client.agent(name, system="You are Marco.") for name in ("whole", "broken"))
        await whole.ask("The boat is green.", max_tokens=4)
        await broken.ask("The boat is green.", max_tokens=4)
        expected = await whole.ask("Go on.", **LONG)
        pieces = list[str]()
        async for piece in broken.stream("Go on.", **LONG):
            pieces.append(piece)
            if len(pieces) == 20:
                stack.kill(victim)
                stack.start(victim)
        assert "".join(pieces) == expected.text
        assert outages
        await said_alike(broken, whole)


async def test_a_turn_that_another_process_sends_again(stack: Stack) -> None:
    """The agent is new at the first time, and not at the second."""
    await stack.renew("gateway")
    for number in range(2):
        async with AsyncClient(stack.grpc) as client:
            marco = client.agent("marco", system="You are Marco.")
            told = await marco.tell("The key is red.", request_id="turn-1")
            answer = await marco.ask("And the boat?", request_id="turn-2", max_tokens=4)
            assert (told.replayed, answer.replayed) == (bool(number), bool(number))
            assert (await marco.info()).turns == 2


INTERRUPTED = """
import sys
from agentmem import Client
with Client(sys.argv[1]) as client:
    client.agent("eve").ask("go on", max_tokens=3500, ignore_eos=True)
"""


@pytest.mark.slow
async def test_ctrl_c_ends_the_turn_at_the_server(stack: Stack) -> None:
    await stack.renew("gateway")
    await stack.until_running(0)  # what an earlier test has left is no turn of this one
    cancelled = await stack.metric("worker", "agentmem_requests_finished_total", reason="cancelled")
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", INTERRUPTED, stack.grpc), stderr=asyncio.subprocess.PIPE
    )
    await stack.until_running(1)
    process.send_signal(signal.SIGINT)
    _, err = await process.communicate()
    assert "\nKeyboardInterrupt" in err.decode()
    await stack.until_running(0)
    assert await stack.metric("worker", "agentmem_requests_finished_total", reason="cancelled") == cancelled + 1
    async with AsyncClient(stack.grpc) as client:
        assert not await client.agent("eve").exists()


async def test_an_agent_from_its_first_turn_to_its_end(stack: Stack) -> None:
    await stack.renew("gateway")

    def live() -> None:
        with Client(stack.grpc) as client:
            marco = client.agent("marco", system="You are Marco.", ttl=3600, context_policy="refuse")
            assert not marco.exists()
            assert marco.tell("The key is red.").finish_reason == "prefilled"
            answer = marco.ask("Where is it?", max_tokens=4)
            assert (answer.memory.match, answer.memory.appended, answer.durable) == ("extend", True, True)
            info = marco.info()
            assert (info.turns, info.context_policy, info.version) == (2, "refuse", answer.version)
            assert info.ttl is not None
            assert info.ttl.total_seconds() == 3600
            assert [(each.role, each.content) for each in marco.messages()] == [
                ("system", "You are Marco."),
                ("user", "The key is red."),
                ("user", "Where is it?"),
                ("assistant", answer.text),
            ]
            assert [turn.messages for turn in marco.turns()] == [(), ()]
            snapshot = marco.snapshot("two")
            assert [each.name for each in marco.snapshots()] == ["two"]
            ada = marco.fork("ada")
            assert ada.messages() == marco.messages()
            ada.ask([Message("user", "And the boat?")], max_tokens=4)
            assert marco.info().version == info.version
            with pytest.raises(errors.AlreadyExists):
                marco.fork("ada")
            past = marco.fork("past", at=snapshot.version, keep_tokens=10)
            assert past.info().tokens == 10
            with pytest.raises(errors.Aborted):
                marco.ask("x", only_if=past.info().version)
            assert marco.trim(12).tokens == 12
            assert marco.restore("two").tokens == info.tokens
            marco.delete_snapshot("two")
            assert marco.pin().pinned
            assert not marco.pin(False).pinned
            assert marco.set_ttl().ttl is None
            assert marco.set_context_policy("trim").context_policy == "trim"
            assert marco.prefetch().tokens > 0
            assert marco.evict() > 0
            probe = marco.probe("Hm?")
            assert (probe.memory.match, probe.version) == ("extend", marco.info().version)
            assert marco.count_tokens("Hm?").tokens < client.count_tokens("Hm? " * 9).tokens
            client.hint({"marco": 1, "ada": None})
            assert not client.abort("none")
            assert sorted(agent.name for agent in client.agents()) == ["ada", "marco", "past"]
            assert [agent.model for agent in client.agents(name="ada")] == [client.models.get().name]
            with pytest.raises(errors.FailedPrecondition, match="system message"):
                client.agent("marco", system="You are Ada.").ask("Hello")
            assert marco.delete().memories == 1
            with pytest.raises(errors.NotFound):
                marco.delete()
            assert marco.delete(missing_ok=True, all_models=True).memories == 0

    await asyncio.to_thread(live)

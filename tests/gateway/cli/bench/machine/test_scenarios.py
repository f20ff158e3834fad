"""Scenarios with a server that answers as it is told: how much they ask, and what they make of it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gateway.cli.bench.completions import Answer, Client
from gateway.cli.bench.machine import scenarios
from gateway.cli.bench.machine.children import Failed
from gateway.cli.bench.machine.course import Scenario
from gateway.cli.bench.machine.plan import NEW, THEIRS, WORKS, Pace
from gateway.cli.bench.machine.scenarios import Known, Skipped, answers, first_tokens, paced, probe, speed, work
from gateway.cli.bench.machine.servers import Server
from gateway.cli.bench.machine.subject import Subject

TOKENS_OF_A_WORD = 2


class Scripted(Server):
    """Counts two tokens for each word, and has all but the newest message from memory."""

    name = THEIRS

    def __init__(self) -> None:
        super().__init__(Path(), cast(Subject, SimpleNamespace(ends=())))
        self.asked: list[dict[str, Any]] = []
        self.refuses = self.cuts = False
        self.most = 10**6

    async def start(self, tell: Any) -> dict[str, Any]:
        raise NotImplementedError

    def check(self) -> None:
        pass

    def reached(self, port: int) -> None:
        self._client = Client(f"http://127.0.0.1:{port}", "scripted", ())

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        asked = json.loads(await reader.readexactly(int(head.partition("content-length: ")[2].partition("\r\n")[0])))
        self.asked.append(asked)
        sizes = [TOKENS_OF_A_WORD * len(message["content"].split()) for message in asked["messages"]]
        usage = {"prompt_tokens": sum(sizes), "completion_tokens": asked["max_tokens"]}
        usage["prompt_tokens_details"] = {"cached_tokens": sum(sizes[:-1])}
        pieces = [{"choices": [{"delta": {"content": "so "}}]} for _ in range(asked["max_tokens"])]
        end = [{"choices": [{"delta": {}, "finish_reason": "length"}]}, {"choices": [], "usage": usage}]
        refuses = self.refuses or sum(sizes) > self.most
        writer.write(f"HTTP/1.1 {503 if refuses else 200} X\r\ncontent-type: text/event-stream\r\n\r\n".encode())
        for piece in (*pieces, *end):
            writer.write(f"data: {json.dumps(piece)}\n\n".encode())
        writer.write(b"" if self.cuts else b"data: [DONE]\n\n")
        await writer.drain()
        writer.close()


@pytest.fixture
async def server() -> AsyncIterator[Scripted]:
    scripted = Scripted()
    listening = await asyncio.start_server(scripted.answer, "127.0.0.1", 0)
    scripted.reached(listening.sockets[0].getsockname()[1])
    yield scripted
    await scripted.client.close()
    listening.close()
    await listening.wait_closed()


@pytest.fixture
def known() -> Known:
    return Known(lambda _: None, words=1 / TOKENS_OF_A_WORD, context=8192, paces={THEIRS: Pace(1e6, 1e4)})


async def filled(scenario: Scenario, server: Server, known: Known, share: float) -> dict[str, Any]:
    found = dict[str, Any]()
    await scenario(server, known, share, found)
    return found


async def test_a_probe_finds_the_words_of_a_token(server: Scripted, known: Known) -> None:
    known.paces, known.words = {}, 0.75
    await probe(server, known)
    assert known.words == 1 / TOKENS_OF_A_WORD
    assert known.paces[THEIRS].prompt > 0 and known.paces[THEIRS].answer > 0


async def test_first_tokens_of_the_lengths_that_fit(server: Scripted, known: Known) -> None:
    found = await filled(first_tokens, server, known, 60)
    assert [sample["prompt"] for sample in found["1024"]["samples"]] == [1024] * len(found["1024"]["samples"])
    sample = found["4096"]["samples"][0]
    assert sample["hot_reused"] == {"reused": 4096 + 8, "of": 4096 + 8 + NEW, "tiers": {}} and "warm" not in sample
    assert found["16384"] == {"skipped": "the context has 8,192 tokens"}
    assert known.kept[THEIRS].tokens == 4096 + 8 + NEW + 4
    prompts = [asked["messages"][0]["content"] for asked in server.asked if len(asked["messages"]) == 1]
    assert len(set(prompts)) == len(prompts), "each is new"


async def test_lengths_that_take_too_long_are_left_out(server: Scripted, known: Known) -> None:
    known.paces[THEIRS] = Pace(prompt=10, answer=0.1)
    found = await filled(first_tokens, server, known, 10)
    assert found["1024"] == {"skipped": "would take about 2 min, of which 2 min are left"}
    assert found["4096"]["skipped"].startswith("would take about 9 min")
    assert "skipped" in (await filled(answers, server, known, 10))["1"] and server.asked == []
    with pytest.raises(Skipped, match="too slow for several agents"):
        await filled(work, server, known, 10)
    with pytest.raises(Skipped, match="would take about"):
        await filled(paced, server, known, 5)


async def test_a_servers_first_figures_are_measured_in_any_case(server: Scripted, known: Known) -> None:
    known.paces[THEIRS] = Pace(prompt=20, answer=1)
    first = await filled(first_tokens, server, known, 0)
    assert len(first["1024"]["samples"]) == 1 and "skipped" in first["4096"]
    assert (await filled(answers, server, known, 0))["1"]["tokens"] == 16
    again = [await filled(first_tokens, server, known, 0), await filled(answers, server, known, 0)]
    assert all("skipped" in each for found in again for each in found.values())


async def test_answers_and_work_are_as_long_for_both_servers(server: Scripted, known: Known) -> None:
    known.answer, known.work = 20, WORKS[-1]
    found = await filled(answers, server, known, 60)
    assert {each["tokens"] for each in found.values()} == {20} and list(found) == ["1", "4", "8"]
    assert known.paces[THEIRS].together.keys() == {1, 4, 8}
    worked = await filled(work, server, known, 60)
    assert (worked["agents"], worked["turns"], worked["generated"]) == (2, 3, 16)
    assert worked["first_p50"] <= worked["first_p95"] and 0.5 < worked["reused_share"] < 1


async def test_lengths_before_a_refusal_stay(server: Scripted, known: Known) -> None:
    found, server.most = dict[str, Any](), 2000
    with pytest.raises(Failed, match="mlx-lm does not answer: HTTP 503"):
        await first_tokens(server, known, 60, found)
    assert len(found["1024"]["samples"]) == 3 and found["4096"]["samples"] == []


async def test_paced_turns_wait(server: Scripted, known: Known, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scenarios, "PAUSE_SECONDS", 0.05)
    known.answer = 20
    found = await filled(paced, server, known, 60)
    assert [len(found[name]["tokens_per_second"]) for name in ("back_to_back", "paced")] == [3, 3]
    assert [len(asked["messages"]) for asked in server.asked] == [1] * 6, "none goes on where another ended"


async def test_a_refusal_or_half_an_answer_is_no_measurement(server: Scripted, known: Known) -> None:
    server.refuses = True
    with pytest.raises(Failed, match="mlx-lm does not answer: HTTP 503"):
        await filled(answers, server, known, 60)
    server.refuses, server.cuts = False, True
    with pytest.raises(Failed, match=r"mlx-lm does not answer: ended as length, without \[DONE\]"):
        await filled(answers, server, known, 60)


def test_speed_is_of_all_answers_together() -> None:
    one, other = Answer(generated=11, arrivals=[10.0, 11.0, 12.0]), Answer(generated=21, arrivals=[10.5, 15.0])
    assert speed([one]) == 5
    assert speed([one, other]) == 6
    assert speed([Answer(generated=3, arrivals=[1.0])]) is None and speed([Answer()]) is None

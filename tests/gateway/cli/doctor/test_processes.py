"""Real processes that end as they should, hang, crash or fail."""

import os
from contextlib import aclosing
from dataclasses import replace

import psutil
import pytest

from agentmem.process.checkup import Finding, State, ok, warning
from gateway.cli.doctor import command
from gateway.cli.doctor.command import findings

MODULE = "tests.gateway.cli.doctor.service"
FIRST = replace(ok("fine", "é\n"), check="first")
BEFORE_IT_HANGS = replace(ok("before"), check="second")


def children() -> set[int]:
    return {each.pid for each in psutil.Process().children(recursive=True)}


async def said(how: str, **environment: str) -> list[str | Finding]:
    before, descriptors, found = children(), len(os.listdir("/dev/fd")), list[str | Finding]()
    with pytest.MonkeyPatch.context() as patience:
        async for each in findings("it", MODULE, [how], environment):
            found.append(each)
            if each == BEFORE_IT_HANGS:  # and not before: a process takes as long to start as the machine lets it
                patience.setattr(command, "SILENCE_SECONDS", 0.2)
    assert children() == before, "it leaves no process behind"
    assert len(os.listdir("/dev/fd")) == descriptors
    return found


async def test_all_that_a_process_says_and_nothing_else() -> None:
    assert await said("says", SAID="hello") == [
        "first", FIRST, "second", replace(warning("hello", "do it"), check="second")
    ]  # fmt: skip


async def test_a_check_that_hangs_is_ended_and_named() -> None:
    *before, last = await said("hangs")
    assert before == ["first", FIRST, "second", BEFORE_IT_HANGS]
    assert isinstance(last, Finding) and last.check == "second" and last.state is State.UNKNOWN
    assert "0.2 s" in last.found


@pytest.mark.parametrize(("how", "check", "words"), [("crashes", "second", "SIGILL"), ("fails", "first", "last words")])
async def test_a_process_that_dies(how: str, check: str, words: str) -> None:
    *before, last = await said(how)
    assert FIRST in before
    assert isinstance(last, Finding) and last.check == check and last.state is State.UNKNOWN
    assert words in last.found


async def test_a_process_ends_when_nobody_listens_any_more() -> None:
    before = children()
    async with aclosing(findings("it", MODULE, ["hangs"], {})) as said:
        async for each in said:
            if each == "second":
                break
    assert children() == before

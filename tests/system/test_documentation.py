"""The examples of README and docs, as they are printed, against a running stack with the demo model."""

import asyncio
import doctest
import json
import os
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

from agentmem.client import aio, answers, connection, inputs, stream, sync
from tests.system.files import contents
from tests.system.shared import DEMO, SharedStacks
from tests.system.stack import Stack

ROOT = Path(__file__).parents[2]
DOCUMENTED = (aio, answers, connection, inputs, stream, sync)
ELSEWHERE = ROOT / "docs" / "guides" / "frameworks.md"
"""Its samples need packages of others: test_framework_guide.py runs them."""
PAGES = [ROOT / "README.md", *(page for page in sorted((ROOT / "docs").rglob("*.md")) if page != ELSEWHERE)]


def blocks(language: str) -> list[str]:
    """All code of a language; what README and a page have both, once."""
    found = (re.findall(rf"```{language}\n(.*?)```", page.read_text(), re.DOTALL) for page in PAGES)
    return list(dict.fromkeys(block for page in found for block in page))


@pytest.mark.slow
async def test_curl_does_what_it_says(stacks: SharedStacks, tmp_path: Path) -> None:
    (script,) = blocks("bash")
    async with stacks.using(DEMO, "store", "worker", "gateway") as stack:
        process = await asyncio.create_subprocess_exec(
            *("bash", "-ec", script.replace("http://127.0.0.1:8080", stack.url)),
            cwd=tmp_path,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        out, err = await process.communicate()
        assert process.returncode == 0, err.decode()
        turn = json.loads(out)
        assert turn["text"] == "Noted, the key is in the cellar."
        assert turn["finished"]["durable"]
        assert contents((tmp_path / "marco.agent").read_bytes()).tokens > 8


async def output(stack: Stack, code: str) -> str:
    code = code.replace("127.0.0.1:50051", stack.grpc).replace("http://127.0.0.1:8080", stack.url)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", code),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "AGENTMEM_ADDRESS": stack.grpc},
    )
    out, err = await process.communicate()
    assert process.returncode == 0, err.decode()
    return out.decode()


@pytest.mark.essential("README's examples")
async def test_examples_do_what_they_say(stacks: SharedStacks) -> None:
    client_example, openai_example, anthropic_example, grpc_example = blocks("python")
    async with stacks.using(DEMO, "store", "worker", "gateway") as stack:
        assert await output(stack, client_example) == "The key is in the cellar.\n"
        printed = await output(stack, grpc_example)
        tokens = len((await stack.ledger("marco")).token_ids)
        assert "The key is in the cellar." in printed
        assert "durable: True version: 3" in printed
        assert int(re.findall(r"reused: (\d+) tokens", printed)[0]) > 20
        first, second = (await output(stack, openai_example)).splitlines()
        assert first == "Noted, the colour of the boat is green. 0 tokens from memory"
        assert re.fullmatch(r"The colour of the boat is green. [1-9]\d* tokens from memory", second)
        assert len((await stack.ledger("marco")).token_ids) == tokens, "it is another agent's example"
        first, second = (await output(stack, anthropic_example)).splitlines()
        assert first == "Noted, the number of the locker is 417. 0 tokens from memory"
        assert re.fullmatch(r"The number of the locker is 417. [1-9]\d* tokens from memory", second)


def failures(module: ModuleType | None, page: str = "") -> list[str]:
    if module is not None:
        tests = doctest.DocTestFinder().find(module)
    else:
        code = "\n".join(re.findall(r"```pycon\n(.*?)```", page, re.DOTALL))
        tests = [doctest.DocTestParser().get_doctest(code, {}, "page", None, None)]
    said, runner = list[str](), doctest.DocTestRunner(verbose=False)
    for test in tests:
        runner.run(test, out=said.append)
    return said


@pytest.mark.slow
async def test_examples_of_the_client_do_what_they_say(
    stacks: SharedStacks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Examples of its page and of its docstrings run in order, each on a stack without agents."""
    async with stacks.using(DEMO, "store", "worker", "gateway") as stack:
        monkeypatch.setenv("AGENTMEM_ADDRESS", stack.grpc)
        monkeypatch.chdir(tmp_path)
        page = (ROOT / "docs" / "guides" / "python.md").read_text()
        assert page.count(">>>") > 30
        assert await asyncio.to_thread(failures, None, page) == []
        client = await stack.client("gateway")
        for module in DOCUMENTED:
            await client.delete_all()
            assert await asyncio.to_thread(failures, module) == []

"""The examples of README and docs, as they are printed, against a running stack with the demo model."""

import asyncio
import json
import re
import sys
from pathlib import Path

from tests.system.files import metadata
from tests.system.stack import Stack, running

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(language: str) -> list[str]:
    """All code of a language; what README and a page have both, once."""
    found = (re.findall(rf"```{language}\n(.*?)```", page.read_text(), re.DOTALL) for page in PAGES)
    return list(dict.fromkeys(block for page in found for block in page))


async def test_curl_does_what_it_says(tmp_path: Path) -> None:
    (script,) = blocks("bash")
    async with running("demo", "store", "worker", "gateway") as stack:
        process = await asyncio.create_subprocess_exec(
            *("bash", "-ec", script.replace("http://127.0.0.1:8080", stack.url)),
            cwd=tmp_path,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        out, err = await process.communicate()
        assert process.returncode == 0, err.decode()
        turn = json.loads(out)
        assert turn["text"]
        assert turn["finished"]["durable"]
        assert json.loads(metadata((tmp_path / "marco.safetensors").read_bytes())["total_tokens"]) > 8


async def output(stack: Stack, code: str) -> str:
    """What an example prints, with the addresses of this stack."""
    code = code.replace("127.0.0.1:50051", f"127.0.0.1:{stack.ports['grpc']}").replace(
        "http://127.0.0.1:8080", stack.url
    )
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", code), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    out, err = await process.communicate()
    assert process.returncode == 0, err.decode()
    return out.decode()


async def test_examples_do_what_they_say() -> None:
    grpc_example, openai_example, anthropic_example = blocks("python")
    async with running("demo", "store", "worker", "gateway") as stack:
        client = await stack.client("gateway")
        await client.say("marco", "The key is in the cellar.", max_tokens=30)
        printed = await output(stack, grpc_example)
        tokens = len((await stack.ledger("marco")).token_ids)
        assert "The key is in the cellar." in printed
        assert "durable: True version: 2" in printed
        assert int(re.findall(r"reused: (\d+) tokens", printed)[0]) > 20
        first, second = (await output(stack, openai_example)).splitlines()
        assert first == "Noted, the colour of the boat is green. 0 tokens from memory"
        assert re.fullmatch(r"The colour of the boat is green. [1-9]\d* tokens from memory", second)
        assert len((await stack.ledger("marco")).token_ids) == tokens, "it is another agent's example"
        first, second = (await output(stack, anthropic_example)).splitlines()
        assert first == "Noted, the number of the locker is 417. 0 tokens from memory"
        assert re.fullmatch(r"The number of the locker is 417. [1-9]\d* tokens from memory", second)

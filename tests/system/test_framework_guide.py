"""The guide to frameworks: its samples as they stand there, and what they leave out, each in a process of its own.

They run where nothing but the gateway can be reached, and whatever else they try to reach fails the test. The gateway
asks for a key. `demo` talks, `qwen` is a model that calls a tool whatever it is asked.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import sys
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio

from gateway.edge.key_file import changing
from gateway.edge.keys import new
from tests import environments, npm_packages
from tests.scripted_model import write_scripted
from tests.system.stack import hosting

pytestmark = pytest.mark.asyncio(loop_scope="module")

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "frameworks.md"
PROGRAMS = Path(__file__).parent / "frameworks"
RAIN, REMEMBERED = r"It rains in Paris! +", r"([1-9]\d*) tokens from memory"
BOAT = rf"The colour of the boat is green\. +{REMEMBERED}"
SAMPLES = {
    "LangChain": [BOAT, rf"The number of the locker is 417\. {REMEMBERED}"],
    "LangGraph": [rf"(I look\.)?{RAIN}{REMEMBERED}\n(I look\.)?{RAIN}{REMEMBERED}"],
    "LlamaIndex": [rf"{BOAT}\nIt rains in Paris!"],
    "pydantic-ai": [rf"{BOAT}\n{RAIN}{REMEMBERED}"],
    "OpenAI's Agents SDK": [rf"{BOAT}\n{RAIN}{REMEMBERED}"],
    "LiteLLM": [BOAT],
    "Vercel's AI SDK": [BOAT],
}
"""Patterns of each section's output."""
CALLS = {
    "LangChain": "langchain_calls",
    "LlamaIndex": "llama_index_calls",
    "pydantic-ai": "pydantic_ai_calls",
    "OpenAI's Agents SDK": "agents_calls",
    "LiteLLM": "litellm_calls",
}
OLDER = ("LlamaIndex", "LiteLLM")
NOT_HERE = {
    "OPENAI_API_KEY",
    "ANTHROPIC_API_KEY",
    "LANGSMITH_TRACING",
    "LANGSMITH_API_KEY",
    "LITELLM_LOCAL_MODEL_COST_MAP",
    "PYTHONDONTWRITEBYTECODE",
}
"""Variables that programs do not get. Without the last one they keep what they import compiled: half of their time."""


@dataclass(frozen=True)
class Gateway:
    url: str
    key: str

    def shown(self, code: str) -> str:
        return code.replace("http://127.0.0.1:8080", self.url).replace('"unused"', f'"{self.key}"')

    async def run(self, *command: str | Path) -> tuple[str, str]:
        known = {name: value for name, value in os.environ.items() if name not in NOT_HERE}
        process = await asyncio.create_subprocess_exec(
            *map(str, command),
            env={**known, "AGENTMEM_URL": self.url, "AGENTMEM_KEY": self.key},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        out, err = await process.communicate()
        assert process.returncode == 0, err.decode()[-6000:]
        return out.decode(), err.decode()

    async def guarded(self, python: Path, *files: Path) -> dict[str, Any]:
        out, _ = await self.run(python, PROGRAMS / "guard.py", self.url.removeprefix("http://"), *files)
        said: dict[str, Any] = json.loads(out)
        return said


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Gateway]:
    folder = tmp_path_factory.mktemp("guide")
    tools = write_scripted(folder / "qwen", special_markers=True)
    key, shown = new("default", datetime.now(UTC))
    with changing(folder / "keys.json") as keys:
        keys[key.id] = key
    flags: dict[str, Sequence[str]] = {
        "worker_flags": ("--model", f"qwen={tools}", "--loaded-models", "2"),
        "gateway_flags": ("--keys", str(folder / "keys.json")),
    }
    async with hosting("demo", "store", "worker", "gateway", **flags) as stack:
        yield Gateway(stack.url, str(shown))


def samples(section: str) -> list[str]:
    (text,) = re.findall(rf"^## {re.escape(section)}\n(.*?)(?=^## |\Z)", GUIDE.read_text(), re.DOTALL | re.MULTILINE)
    return re.findall(r"```(?:python|js)\n(.*?)```", text, re.DOTALL)


def python_of(section: str) -> Path:
    return environments.older_frameworks() if section in OLDER else Path(sys.executable)


async def test_every_sample_is_tested() -> None:
    sections = re.findall(r"^## (.*)$", GUIDE.read_text(), re.MULTILINE)
    assert {section for section in sections if samples(section)} == set(SAMPLES)
    assert {path.stem for path in PROGRAMS.glob("*_calls.py")} == set(CALLS.values())


@pytest.mark.slow
@pytest.mark.parametrize("section", [section for section in SAMPLES if section != "Vercel's AI SDK"])
async def test_samples_and_what_they_leave_out(section: str, gateway: Gateway, tmp_path: Path) -> None:
    codes = samples(section)
    files = [tmp_path / f"sample_{number}.py" for number in range(len(codes))]
    for file, code in zip(files, codes, strict=True):
        file.write_text(gateway.shown(code))
    others = [PROGRAMS / f"{CALLS[section]}.py"] if section in CALLS else []
    said = await gateway.guarded(python_of(section), *files, *others)
    assert said["tried"] == []
    for file, expected in zip(files, SAMPLES[section], strict=True):
        assert re.fullmatch(expected, said["printed"][file.stem].strip()), said["printed"][file.stem]


async def test_a_program_that_reaches_for_more_is_found(gateway: Gateway, tmp_path: Path) -> None:
    file = tmp_path / "sample.py"
    file.write_text(
        "import contextlib, socket, urllib.request\n"
        "for url in ('http://192.0.2.1/', 'http://example.org/'):\n"
        "    with contextlib.suppress(OSError):\n"
        "        urllib.request.urlopen(url)\n"
        "with contextlib.suppress(OSError):\n"
        "    socket.socket().connect(('192.0.2.1', 443))\n"
    )
    said = await gateway.guarded(Path(sys.executable), file)
    assert said == {"printed": {"sample": ""}, "tried": ["192.0.2.1", "example.org", "('192.0.2.1', 443)"]}


@pytest.mark.slow
async def test_vercels_sdk(gateway: Gateway, tmp_path: Path) -> None:
    (sample,) = samples("Vercel's AI SDK")
    (tmp_path / "node_modules").symlink_to(npm_packages.installed(PROGRAMS / "npm"))
    (tmp_path / "sample.mjs").write_text(gateway.shown(sample))
    for name in ("guard.mjs", "vercel_calls.mjs"):
        shutil.copy(PROGRAMS / name, tmp_path)
    guarded = ("node", "--import", tmp_path / "guard.mjs")
    out, _ = await gateway.run(*guarded, tmp_path / "sample.mjs")
    assert re.fullmatch(SAMPLES["Vercel's AI SDK"][0], out.strip()), out
    await gateway.run(*guarded, tmp_path / "vercel_calls.mjs")
    (tmp_path / "other.mjs").write_text('await fetch("http://192.0.2.1/").catch(() => {});')
    with pytest.raises(AssertionError, match=r"192\.0\.2\.1:80 is not the gateway"):
        await gateway.run(*guarded, tmp_path / "other.mjs")


OPEN_WEBUI = {
    "x-openwebui-user-name": "Ada%20L",
    "x-openwebui-user-id": "5f2c",
    "x-openwebui-user-email": "ada@example.org",
    "x-openwebui-user-role": "admin",
    "x-openwebui-chat-id": "9b1d",
}
TOOL = {
    "name": "get_weather",
    "description": "How the weather is.",
    "parameters": {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "properties": {"city": {"description": "Where", "type": "string"}},
        "required": ["city"],
        "additionalProperties": False,
    },
}


@pytest.mark.slow
async def test_open_webui(gateway: Gateway) -> None:
    """Requests as Open WebUI 0.12 sends them, by its source: it is no package to be installed here."""
    headers = {**OPEN_WEBUI, "authorization": f"Bearer {gateway.key}"}
    async with httpx.AsyncClient(base_url=f"{gateway.url}/v1", headers=headers, timeout=60) as http:
        assert {model["id"] for model in (await http.get("/models")).json()["data"]} >= {"demo", "qwen"}

        async def ask(model: str, said: list[Any], **more: Any) -> int:
            """Add the streamed answer to what was said; return how many tokens of the prompt were in memory."""
            body = {"stream": True, "model": model, "messages": said, "stream_options": {"include_usage": True}, **more}
            answer = await http.post("/chat/completions", json=body)
            assert answer.headers["content-type"].startswith("text/event-stream"), answer.text
            lines = [line.removeprefix("data: ") for line in answer.text.splitlines() if line.startswith("data: ")]
            *chunks, last = [json.loads(line) for line in lines if line != "[DONE]"]
            deltas = [choice["delta"] for chunk in chunks for choice in chunk["choices"]]
            message: dict[str, Any] = {"content": "".join(delta.get("content") or "" for delta in deltas)}
            if pieces := [call for delta in deltas for call in delta.get("tool_calls", ())]:
                function = {**pieces[0]["function"], "arguments": "".join(p["function"]["arguments"] for p in pieces)}
                message["tool_calls"] = [{**pieces[0], "function": function}]
            said.append({"role": "assistant", **message})
            assert last["choices"] == []
            cached: int = last["usage"]["prompt_tokens_details"]["cached_tokens"]
            return cached

        fact = {"role": "user", "content": "The colour of the boat is green."}
        said: list[Any] = [{"role": "system", "content": "You are a boat's."}, fact]
        await ask("demo", said, temperature=0.0)
        task = f"### Task:\nGenerate it.\n### Chat History:\n<chat_history>\nUSER: {fact['content']}\n</chat_history>"
        for more in ({"max_tokens": 1000}, {}, {}):  # a title, tags, follow-up questions
            body = {"model": "demo", "messages": [{"role": "user", "content": task}], "stream": False, **more}
            answer = (await http.post("/chat/completions", json=body)).json()
            assert isinstance(answer["choices"][0]["message"]["content"], str)
        said.append({"role": "user", "content": "What is the colour of the boat?"})
        assert await ask("demo", said, temperature=0.0) > 0
        assert said[-1]["content"] == fact["content"]

        said, tools = [{"role": "user", "content": "How is the weather?"}], [{"type": "function", "function": TOOL}]
        await ask("qwen", said, tools=tools)
        said.append({"role": "tool", "tool_call_id": said[-1]["tool_calls"][0]["id"], "content": "rain"})
        assert await ask("qwen", said, tools=tools) > 0
        assert said[-1]["content"] == "It rains in Paris!"

        refused = await http.post("/chat/completions", json={"model": "demo", "messages": [fact], "num_ctx": 4096})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "num_ctx")
        wrong = await http.get("/models", headers={"authorization": "Bearer wrong"})
        assert (wrong.status_code, "key" in wrong.json()["error"]["message"]) == (401, True)

"""Frameworks in the modes that they have by default, against a real stack.

The model says what its script has it say, which fits nothing that is asked of it; what it is held to fits. Each test
imports its framework: all of them together take a third of what collecting all tests takes.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import openai
import pytest
import pytest_asyncio
from pydantic import BaseModel, ConfigDict, Field, SecretStr

from tests.scripted_model import write_scripted
from tests.system.stack import hosting

if TYPE_CHECKING:
    from langchain_openai import ChatOpenAI

pytestmark = pytest.mark.asyncio(loop_scope="module")


class Alarm(BaseModel):
    """An alarm."""

    model_config = ConfigDict(extra="forbid")

    at: str = Field(pattern="^[0-2][0-9]:[0-5][0-9]$")
    days: list[int] = Field(max_length=2)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def url(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[str]:
    directory = write_scripted(tmp_path_factory.mktemp("scripted") / "m", special_markers=True)
    async with hosting(f"scripted={directory}", "store", "worker", "gateway") as stack:
        yield f"{stack.url}/v1"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def sdk(url: str) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as sdk:
        yield sdk


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def chat(url: str) -> AsyncIterator[ChatOpenAI]:
    from langchain_openai import ChatOpenAI

    async with openai.DefaultAsyncHttpxClient() as http:
        yield ChatOpenAI(
            model="scripted", base_url=url, api_key=SecretStr("none"), max_retries=0, http_async_client=http
        )


@pytest.mark.slow
async def test_instructor(sdk: openai.AsyncOpenAI) -> None:
    """It names the function that the model has to call."""
    import instructor

    client = instructor.from_openai(sdk)
    assert client.mode is instructor.Mode.TOOLS
    for _ in range(3):
        alarm = await client.chat.completions.create(
            model="scripted", messages=[{"role": "user", "content": "hi"}], response_model=Alarm, max_retries=1
        )
        assert isinstance(alarm, Alarm)

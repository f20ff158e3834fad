"""Stacks that serve several tiny models, and what their turns are held against."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from agentmem.v1 import model_pb2, types_pb2
from tests.oracle import Oracle
from tests.system.client import Client, Turn
from tests.system.recomputed import difference
from tests.system.stack import Stack

LOADED, REGISTERED, FAILED = (
    model_pb2.MODEL_STATE_LOADED,
    model_pb2.MODEL_STATE_REGISTERED,
    model_pb2.MODEL_STATE_FAILED,
)
ARGUMENTS: dict[str, object] = {"max_tokens": 12, "top_logprobs": 0, "sampling": types_pb2.Sampling(ignore_eos=True)}
"""For turns that are held against recomputation."""


@dataclass
class Several:
    """A stack with models by name, and a truth for each."""

    directories: Mapping[str, Path]
    flags: tuple[str, ...] = ()
    hosted: bool = False
    stack: Stack = field(init=False)
    oracles: dict[Path, Oracle] = field(default_factory=dict)

    def __post_init__(self) -> None:
        (first, directory), *others = self.directories.items()
        more = [part for name, place in others for part in ("--model", f"{name}={place}")]
        flags = ("--pool-bytes", str(1 << 24), "--min-residency", "0.1", *more, *self.flags)
        self.stack = Stack(f"{first}={directory}", worker_flags=flags, hosted=self.hosted)

    async def on(self, model: str) -> Client:
        return await self.stack.client(model=model)

    def oracle(self, directory: Path) -> Oracle:
        if directory not in self.oracles:
            self.oracles[directory] = Oracle(directory)
        return self.oracles[directory]

    async def difference(self, agent: str, model: str, turn: Turn, other: Path | None = None) -> float:
        """The largest between the last answer's log-probabilities and those of its model, or of `other`, recomputed."""
        assert len(set(turn.token_ids)) > 3, "an output that does not vary proves nothing"
        return await difference(self.stack, self.oracle(other or self.directories[model]), turn, agent, model)

    async def model(self, name: str) -> model_pb2.Model:
        client = await self.on(name)
        return (await client.models.GetModel(model_pb2.GetModelRequest(model_id=name), timeout=30)).model

    async def loaded(self) -> list[str]:
        client = await self.stack.client()
        models = (await client.models.ListModels(model_pb2.ListModelsRequest(), timeout=10)).models
        return sorted(model.model_id for model in models if model.state == LOADED)

    async def load(self, name: str) -> list[model_pb2.LoadModelResponse]:
        client = await self.on(name)
        return [told async for told in client.models.LoadModel(model_pb2.LoadModelRequest(model_id=name), timeout=60)]

    async def swaps(self) -> int:
        """Models that were loaded so far."""
        return int(await self.stack.metric("worker", "agentmem_model_loads_total", result="loaded"))


def of_models(write: Callable[[Path], Mapping[str, Path]], *flags: str, hosted: bool = False) -> Any:
    """Return a fixture of a module: a stack that is up and serves the models that `write` writes."""

    @pytest.fixture(scope="module")
    def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Several]:
        several = Several(write(tmp_path_factory.mktemp("models")), flags, hosted=hosted)
        asyncio.run(several.stack.up())
        yield several
        asyncio.run(several.stack.destroy())

    return made

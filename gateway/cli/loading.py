"""The load of a model, shown while a command waits for it."""

import asyncio

from agentmem import AsyncClient, Model
from agentmem.v1 import model_pb2
from gateway.api.reports import load_line
from gateway.cli.live_line import INTERVAL, LiveLine


async def loaded(agentmem: AsyncClient, name: str, line: LiveLine) -> Model:
    """Load a model. Raises AgentmemError; if the caller leaves and no one else wants it, it is not loaded."""
    loading = asyncio.create_task(agentmem.models.load(name))
    try:
        while not loading.done():
            line.show(load_line(found) if (found := await _loading(agentmem, name)) else "")
            await asyncio.wait({loading}, timeout=INTERVAL)
        return loading.result()
    finally:
        loading.cancel()
        await asyncio.wait({loading})


async def waited_for(agentmem: AsyncClient, name: str, line: LiveLine) -> None:
    """Wait until nobody loads the model."""
    while found := await _loading(agentmem, name):
        line.show(load_line(found))
        await asyncio.sleep(INTERVAL)


async def _loading(agentmem: AsyncClient, name: str) -> model_pb2.Model | None:
    async for model in agentmem.models.list():  # `get` would ask the hub
        if model.name == name:
            return model.raw if model.raw.HasField("progress") else None
    return None

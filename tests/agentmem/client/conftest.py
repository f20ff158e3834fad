"""Clients of a real gateway before a scripted worker."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from agentmem import AsyncClient
from gateway.app import Gateway
from tests.gateway.conftest import gateway as gateway
from tests.gateway.conftest import patient as patient
from tests.gateway.conftest import worker as worker
from tests.gateway.scripted import ScriptedWorker


@pytest.fixture
def address(worker: ScriptedWorker, gateway: Gateway) -> str:
    return gateway.addresses["grpc"]


@pytest.fixture
async def client(address: str) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(address, patience=20) as made:
        yield made

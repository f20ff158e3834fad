"""A key of one namespace can neither see nor change nor time what another namespace has, whichever way it asks."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf import descriptor_pool
from google.protobuf.descriptor import MethodDescriptor
from starlette.routing import BaseRoute, Mount, Route

from agentmem.channels import connect
from agentmem.v1 import agent_pb2, model_pb2
from gateway.app import Gateway
from gateway.edge import key_file
from gateway.edge.keys import new
from gateway.settings import GatewaySettings
from tests.system import isolation
from tests.system.isolation import AGENT, MODEL, RPCS, SECRET
from tests.system.isolation_calls import all_of, calling, furnish, try_all
from tests.system.isolation_routes import ROUTES
from tests.system.stack import running

_OPEN = ("grpc.health.", "grpc.reflection.")


def routes(found: Iterable[BaseRoute], prefix: str = "") -> Iterator[tuple[str, str]]:
    for route in found:
        if isinstance(route, Mount):
            yield from routes(route.routes or (), f"{prefix}{route.path}")
            continue
        assert isinstance(route, Route), f"{route!r} is a kind of route that this test does not know; teach it"
        for method in (route.methods or {"GET"}) - {"HEAD", "OPTIONS"}:
            yield method, f"{prefix}{route.path}"


async def test_every_rpc_and_route_is_in_the_table(tmp_path: Path) -> None:
    settings = GatewaySettings(run_dir=tmp_path, http="127.0.0.1:0", grpc="127.0.0.1:0", metrics="")
    gateway = Gateway(settings)
    served = set(routes(gateway.http.app.routes))
    where = "tests/system/isolation_routes.py says what a stranger's key may do with each"
    assert not (missing := served - ROUTES.keys()), f"add to ROUTES: {missing}; {where}"
    assert not (gone := ROUTES.keys() - served), f"take out of ROUTES: {gone}"
    await gateway.start()
    try:
        async with connect(gateway.addresses["grpc"]) as channel:
            public = {
                f"{service}/{method.name}" for service in await services(channel) for method in methods_of(service)
            }
    finally:
        await gateway.stop()
    assert not (missing_rpcs := public - RPCS.keys()), f"add to RPCS in tests/system/isolation.py: {missing_rpcs}"
    assert not (gone_rpcs := RPCS.keys() - public), f"take out of RPCS: {gone_rpcs}"


async def services(channel: grpc.aio.Channel) -> list[str]:
    """Return the door's services, by reflection, without those open to all."""
    from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

    async def ask() -> AsyncIterator[Any]:
        yield reflection_pb2.ServerReflectionRequest(list_services="")

    call = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo(ask())
    async for answer in call:
        named = [service.name for service in answer.list_services_response.service]
        return [name for name in named if not name.startswith(_OPEN)]
    raise AssertionError("reflection said nothing")


def methods_of(service: str) -> list[MethodDescriptor]:
    return list(descriptor_pool.Default().FindServiceByName(service).methods)  # type: ignore[no-untyped-call]


def make_keys(path: Path, **keys: dict[str, Any]) -> dict[str, str]:
    shown = {}
    with key_file.changing(path) as known:
        for name, fields in keys.items():
            made, secret = new(created=datetime.now(UTC), **fields)
            known[made.id], shown[name] = made, str(secret)
    return shown


@pytest.mark.essential("a namespace is closed to the keys of others")
async def test_a_key_opens_its_own_namespace_only(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    keys = make_keys(
        path,
        ada={"namespace": "ada", "max_per_minute": 0},
        bob={"namespace": "bob", "max_per_minute": 0},
        root={"namespace": "ada", "admin": True},
    )
    async with (
        running(MODEL, "store", "worker", "gateway", gateway_flags=("--keys", str(path))) as stack,
        calling(stack, keys["ada"], keys["bob"], keys["root"], "") as (ada, bob, root, nobody),
    ):
        await furnish(bob)
        before = await all_of(bob)
        assert await try_all(ada, bob, nobody) == []
        assert await all_of(bob) == before
        adas = (await ada.agents.ListAgents(agent_pb2.ListAgentsRequest())).agents
        assert {"bobs-prefill", "bobs-chat"} <= {agent.key.agent_id for agent in adas}  # hers, of the same names
        assert AGENT not in {agent.key.agent_id for agent in adas}
        # An admin's call reaches the worker.
        loaded = await root.call("agentmem.v1.ModelService/LoadModel", model_pb2.LoadModelRequest(model_id=MODEL))
        assert loaded not in (isolation.DENIED, grpc.StatusCode.UNAUTHENTICATED)
        for name in ("store", "worker", "gateway"):
            for secret in (SECRET.strip(), *keys.values()):
                assert secret not in stack.logs(name)

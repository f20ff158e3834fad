"""The document is of the door that is served: all of it, and nothing else."""

from __future__ import annotations

import re

import httpx
import pytest
from openapi_spec_validator import validate
from starlette.routing import Route

from gateway.app import Gateway
from gateway.http.openapi import document
from tests.gateway.scripted import ScriptedWorker


@pytest.mark.slow
async def test_it_is_served_and_valid(worker: ScriptedWorker, http: httpx.AsyncClient) -> None:
    answer = await http.get("/openapi.json")
    assert answer.json() == document()
    validate(answer.json())


async def test_every_route_of_the_apis_is_in_it_and_nothing_else(gateway: Gateway) -> None:
    described = {(method.upper(), path) for path, operations in document()["paths"].items() for method in operations}
    routes = gateway.http.app.routes
    assert all(isinstance(route, Route) for route in routes), "a mount would hide its routes from the document"
    assert described | {("GET", path) for path in ("/", "/ui", "/ui/{file}", "/metrics", "/openapi.json")} == {
        (method, re.sub(r"{(\w+):\w+}", r"{\1}", route.path))
        for route in routes
        if isinstance(route, Route)
        for method in (route.methods or set()) - {"HEAD"}
    }


def test_no_field_is_a_namespace() -> None:
    """But for the one that a tool of OpenAI's dialect may be in."""
    schemas = document()["components"]["schemas"]
    named = {name for name, schema in schemas.items() if "namespace" in schema.get("properties", {})}
    assert named == {"FunctionCallItem", "CustomCallItem", "CallOutputItem"}

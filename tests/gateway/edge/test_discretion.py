from __future__ import annotations

from contextvars import copy_context
from pathlib import Path

import grpc
import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentmem import errors
from agentmem.v1 import model_pb2, model_pb2_grpc
from gateway.edge.authorization import redact, without_directories
from gateway.edge.callers import Caller, serve
from tests.gateway.scripted import ScriptedWorker
from tests.gateway.secured import add_key, secured, showing

SECRET = "/srv/team b/weights"
BROKEN = f"model 'llama' cannot be loaded from /srv/weights/llama with adapter /srv/a: [Errno 2] '{SECRET}/config.json'"


@pytest.mark.parametrize(
    ("told", "left"),
    [
        (BROKEN, "model 'llama' cannot be loaded from …/llama with adapter …/a: [Errno 2] '…/config.json'"),
        ("~/models/x is not a directory", "…/x is not a directory"),
        ("model './x/y': ./x/y is not a directory", "model '…/y': …/y is not a directory"),
        ("/x changed while it was read", "…/x changed while it was read"),
        ("model 'mlx-community/gemma-3' and/or 1/2; hub.example/a", None),
    ],
)
def test_paths_are_their_last_parts(told: str, left: str | None) -> None:
    assert without_directories(told) == (told if left is None else left)


@given(st.lists(st.text("abcé-_.0", min_size=1), min_size=1), st.sampled_from(["", "'", '"']))
def test_no_directory_is_left(parts: list[str], quote: str) -> None:
    path = "/" + "".join(f"HIDDEN{part}/" for part in parts) + "file"
    assert without_directories(f"a {quote}{path}{quote}: b") == f"a {quote}…/file{quote}: b"


def test_what_a_stranger_is_told() -> None:
    local = model_pb2.Model(model_id="a", source="/srv/a", adapter="/srv/b", error=BROKEN, weight_bytes=7)
    pages = model_pb2.ListModelsResponse(models=[local, model_pb2.Model(source="org/name")])
    redact(pages)
    assert pages.models[0] == local, "outside of requests"
    for admin in (True, False):
        copy_context().run(redacted, pages, Caller("team-a", admin=admin))
        assert admin == (pages.models[0] == local)
    hidden, hub = pages.models
    assert "/srv" not in str(pages)
    assert (hidden.model_id, hidden.weight_bytes, hub.source) == ("a", 7, "org/name")


def redacted(pages: model_pb2.ListModelsResponse, who: Caller) -> None:
    serve(who)
    redact(pages)


@pytest.mark.parametrize("admin", [False, True])
async def test_both_doors(worker: ScriptedWorker, run_dir: Path, admin: bool) -> None:
    worker.models[0].source = f"{SECRET}/demo"
    worker.models[0].adapter = f"{SECRET}/lora"
    key = add_key(run_dir, admin=admin)
    chat = {"model": "demo", "messages": [{"role": "user", "content": "hi"}]}
    async with secured(run_dir) as gateway, showing(gateway, key) as (http, channel):
        models = model_pb2_grpc.ModelServiceStub(channel)
        paths = "/v1/models", "/v1/models/demo", "/v1/model-registry", "/v1/model-registry/demo"
        told = [(await http.get(path)).text for path in paths]
        told.append(str(await models.ListModels(model_pb2.ListModelsRequest())))
        told.append(str(await models.GetModel(model_pb2.GetModelRequest(model_id="demo"))))
        worker.error = errors.FailedPrecondition(f"'{SECRET}/config.json' is missing")
        told.append((await refused(http, chat)).text)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await models.GetModel(model_pb2.GetModelRequest(model_id="demo"))
        told.append(caught.value.details() or "")
    assert [SECRET in each for each in told] == [admin] * len(told)
    assert all("config.json" in each for each in told[-2:])


async def refused(http: httpx.AsyncClient, chat: object) -> httpx.Response:
    answer = await http.post("/v1/chat/completions", json=chat)
    assert answer.status_code == 400
    return answer

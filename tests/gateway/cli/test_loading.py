"""At a terminal commands show the load that they wait for."""

from __future__ import annotations

import asyncio

import pytest

from agentmem.v1 import model_pb2
from gateway.app import Gateway
from tests.gateway.scripted import ScriptedWorker
from tests.terminal import CTRL_C, CTRL_D, terminal

SHOWN = "loading demo: reading the weights, 40 %, about 12 s left"


@pytest.fixture
def loading(worker: ScriptedWorker) -> model_pb2.Model:
    model = worker.models[0]
    model.state = model_pb2.MODEL_STATE_LOADING
    model.progress.CopyFrom(model_pb2.LoadProgress(stage="read", share=0.4))
    model.progress.remaining.FromSeconds(12)
    worker.holds = asyncio.Event()
    return model


def done(worker: ScriptedWorker, model: model_pb2.Model) -> None:
    model.state = model_pb2.MODEL_STATE_LOADED
    model.ClearField("progress")
    assert worker.holds is not None
    worker.holds.set()


async def test_a_load_is_shown_until_the_model_is_there(
    worker: ScriptedWorker, gateway: Gateway, loading: model_pb2.Model
) -> None:
    command = ("-m", "gateway.cli.main", "models", "load", "demo", "--gateway", gateway.addresses["grpc"])
    async with terminal(*command) as shown:
        await shown.until(SHOWN)
        loading.progress.CopyFrom(model_pb2.LoadProgress(stage="prove", once=True))
        await shown.until("proving attention on this device, once per model")
        done(worker, loading)
        await shown.until("demo is loaded")
        assert await shown.ended() == 0


async def test_a_load_that_nobody_waits_for_any_more_is_called_off(
    worker: ScriptedWorker, gateway: Gateway, loading: model_pb2.Model
) -> None:
    command = ("-m", "gateway.cli.main", "models", "load", "demo", "--gateway", gateway.addresses["grpc"])
    async with terminal(*command) as shown:
        await shown.until(SHOWN)
        shown.type(CTRL_C)
        assert await shown.ended() != 0


async def test_a_chat_waits_for_the_default_model(
    worker: ScriptedWorker, gateway: Gateway, loading: model_pb2.Model
) -> None:
    async with terminal("-m", "gateway.cli.main", "chat", "--gateway", gateway.addresses["grpc"]) as shown:
        await shown.until(SHOWN)
        done(worker, loading)
        await shown.until("chat on demo, a new agent", ">")
        shown.type(CTRL_D)
        assert await shown.ended() == 0

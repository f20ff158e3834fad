"""ModelService: what is registered, what is loaded, and the arithmetic of memory."""

import asyncio
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import mlx.core as mx
import numpy as np
import pytest

from agentmem.errors import FailedPrecondition, InvalidArgument, Unavailable
from agentmem.process.models import RegisteredModel
from agentmem.v1 import model_pb2, types_pb2
from inference_service.domain import Sampling
from inference_service.engine.calibration import Calibration, LayerCalibration
from inference_service.engine.device import device_and_version
from inference_service.engine.geometry import Geometry, LayerGroup
from inference_service.engine.quality import Divergence, Quality
from inference_service.engine.quantization import FOUR_BITS
from inference_service.hub.searching import HubSearch
from inference_service.models.fitting import MemoryLimits
from inference_service.models.serving import Models
from inference_service.models.slots import State
from inference_service.pool.kv import Space
from inference_service.pool.memory import Sizes
from inference_service.servicers.models import ModelServicer
from inference_service.settings import WorkerSettings
from inference_service.text.tool_calls import CallSyntax
from tests.inference_service.models.conftest import directories
from tests.inference_service.models.world import serving
from tests.inference_service.real_tokenizers import byte_level

__all__ = ["directories"]

GEOMETRY = Geometry(8, mx.bfloat16, FOUR_BITS, LayerGroup((0, 1, 2), 2, 64, 128), LayerGroup((3,), 2, 64, 128, 512))
MEANS = ((1.0, -0.5), (-3.0, 0.25))
LOADED = SimpleNamespace(
    model_id="tiny",
    architecture="llama",
    context_length=4096,
    vocab_size=300,
    geometry=GEOMETRY,
    fingerprint="f" * 64,
    weight_bytes=12345,
    activation_bytes=67,
    taken_bytes=20000,
    paths=(SimpleNamespace(phase="decode", path="quantized_matmul", relative_error=1e-6, note="why"),),
    quality=Quality(128, {"4": Divergence(0.5, 2.0), "5/4": Divergence(0.001, 0.01)}),
    setup=SimpleNamespace(reason="because", final=True),
    calibration=Calibration([LayerCalibration(*(np.full((2, 64), x, np.float16) for x in each)) for each in MEANS]),
    tokenizer=byte_level(),
    call_syntax=CallSyntax("json_tools", b"<tool_call>", b"</tool_call>", lambda _text, _tools: None),
    memory=SimpleNamespace(sizes=Sizes(Space(33, 9), 700)),
    sampling=Sampling(temperature=0.5),
)
WIRING = SimpleNamespace(part=lambda model_id: 17000 if model_id == "tiny" else 0)
LOADER = cast(Any, SimpleNamespace(limits=MemoryLimits(30000), wiring=WIRING))


def models(*names: str, **options: Any) -> Models:
    registered = {name: RegisteredModel(name, f"/models/{name}", **options) for name in names or ("tiny", "b", "a")}
    nothing = cast(Any, None)
    return Models(registered, nothing, nothing, nothing, swap_wait=1.0, min_residency=0.0)


def with_loaded(of: Models) -> Models:
    slot = of.slots["tiny"]
    slot.loaded, slot.state = cast(Any, LOADED), State.MODEL_STATE_LOADED
    return of


def servicer(of: Models, loader: Any = LOADER) -> ModelServicer:
    nothing = cast(Any, None)
    return ModelServicer(of, loader, nothing, nothing)


async def page(of: Models, **fields: Any) -> model_pb2.ListModelsResponse:
    return await servicer(of).ListModels(model_pb2.ListModelsRequest(**fields), None)


async def get(of: Models, model_id: str = "") -> model_pb2.Model:
    return (await servicer(of).GetModel(model_pb2.GetModelRequest(model_id=model_id), None)).model


async def test_default_first_then_by_name() -> None:
    response = await page(models())
    assert [m.model_id for m in response.models] == ["tiny", "a", "b"]
    assert [m.is_default for m in response.models] == [True, False, False]
    assert response.next_page_token == ""


@pytest.mark.parametrize("size", [1, 2, 3, 4])
async def test_pages_are_the_whole_list(size: int) -> None:
    of, token, names = models("d", "c", "b", "a"), "", []
    while True:
        response = await page(of, page_size=size, page_token=token)
        assert 1 <= len(response.models) <= size
        names += [m.model_id for m in response.models]
        token = response.next_page_token
        if not token:
            break
    assert names == ["d", "a", "b", "c"]


async def test_registered_models_say_how() -> None:
    response = await page(models("tiny", adapter="/adapters/x", ttl=90.5, pinned=True))
    (model,) = response.models
    assert (model.state, model.source, model.adapter) == (
        model_pb2.MODEL_STATE_REGISTERED, "/models/tiny", "/adapters/x",
    )  # fmt: skip
    assert (model.pinned, model.ttl.ToTimedelta().total_seconds()) == (True, 90.5)
    assert not (await page(models("tiny"))).models[0].HasField("ttl")


async def test_loaded_model_is_described() -> None:
    path = model_pb2.AttentionPath(phase="decode", path="quantized_matmul", relative_error=1e-6, note="why")
    found = await get(with_loaded(models()))
    found.memory.ClearField("device_bytes")
    assert found == model_pb2.Model(
        model_id="tiny",
        is_default=True,
        state=model_pb2.MODEL_STATE_LOADED,
        source="/models/tiny",
        sampling=types_pb2.Sampling(temperature=0.5, top_p=1, top_k=0, min_p=0, repetition_penalty=1),
        context_length=4096,
        fingerprint="f" * 64,
        device=device_and_version(),
        architecture="llama",
        dtype="bfloat16",
        kv_bits="4",
        kv_group_size=64,
        full_layers=3,
        sliding_layers=1,
        sliding_window=512,
        kv_heads=2,
        k_head_dim=64,
        v_head_dim=128,
        kv_bytes_per_token=GEOMETRY.bytes_per_token,
        weight_bytes=12345,
        wired_bytes=17000,
        vocab_size=300,
        tokenizer_hash=byte_level().hash,
        attention_paths=[path],
        tool_parser="json_tools",
        kv_bits_measured=[
            model_pb2.KVBitsMeasurement(
                kv_bits="4", kl_divergence=0.5, kl_divergence_p99=2.0, bytes_per_token=GEOMETRY.bytes_per_token
            ),
            model_pb2.KVBitsMeasurement(
                # 3 layers x 2 heads x 64 elements, 1 bit more each
                kv_bits="5/4",
                kl_divergence=0.001,
                kl_divergence_p99=0.01,
                bytes_per_token=GEOMETRY.bytes_per_token + 48,
                good=True,
            ),
        ],
        recommended_kv_bits="5/4",
        kv_bits_reason="because",
        kv_scheme="rotated",
        calibration=model_pb2.Calibration(
            digest=LOADED.calibration.digest, largest_k_means=[1.0, 3.0], largest_v_means=[0.5, 0.25]
        ),
        memory=model_pb2.ModelMemory(
            usable_bytes=30000,
            weight_bytes=12345,
            activation_bytes=67,
            pool_bytes=33 * 256 * GEOMETRY.bytes_per_token + 9 * GEOMETRY.piece_bytes,
            batch_bytes=700,
            agent_4k_bytes=4096 * GEOMETRY.bytes_per_token + 4 * GEOMETRY.piece_bytes,
            agents_4k=2,
            pool_tokens=33 * 256,
        ),
    )


@pytest.mark.slow
async def test_a_model_on_disk_is_described_and_planned_without_its_weights(
    directories: dict[str, str], tmp_path: Path
) -> None:
    async with serving(directories, tmp_path) as world:
        service = servicer(world.models, world.loader)
        get = service.GetModel
        a = (await get(model_pb2.GetModelRequest(model_id="a"), None)).model
        b = (await get(model_pb2.GetModelRequest(model_id="b"), None)).model
        assert (a.state, b.state) == (model_pb2.MODEL_STATE_LOADED, model_pb2.MODEL_STATE_REGISTERED)
        for name in ("weight_bytes", "kv_bytes_per_token", "context_length", "vocab_size", "tokenizer_hash"):
            assert getattr(a, name) == getattr(b, name), name
        assert not b.attention_paths and not b.fingerprint
        for model in (a, b):
            memory = model.memory
            parts = ("weight", "activation", "pool", "batch", "other_models")
            assert memory.usable_bytes - sum(getattr(memory, f"{part}_bytes") for part in parts) in range(1 << 20)
            assert memory.agents_4k == memory.pool_bytes // memory.agent_4k_bytes > 1
            assert memory.device_bytes > memory.usable_bytes
        loaded, shown = [], []
        async for each in service.LoadModel(model_pb2.LoadModelRequest(model_id="b"), None):
            loaded.append(each)
            shown.append((await get(model_pb2.GetModelRequest(model_id="b"), None)).model)
        for at, model in zip(loaded[1:-1], shown[1:-1], strict=True):  # the first comes before the load begins
            assert model.state == model_pb2.MODEL_STATE_LOADING
            assert model.progress.stage == at.stage and model.progress.share >= at.progress
            assert model.progress.once == (at.stage in ("fetch", "measure", "prove"))
        assert shown[-1].state == model_pb2.MODEL_STATE_LOADED and not shown[-1].HasField("progress")
        assert loaded[-1].stage == "ready" and loaded[-1].model.fingerprint
        assert [each.stage for each in loaded].count("ready") == 1
        freed = (await service.UnloadModel(model_pb2.UnloadModelRequest(model_id="b"), None)).freed_bytes
        assert freed == loaded[-1].model.weight_bytes + loaded[-1].model.memory.pool_bytes
        with pytest.raises(InvalidArgument, match="model_id"):
            await service.UnloadModel(model_pb2.UnloadModelRequest(), None)


async def test_what_is_searched_and_pulled_is_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    offline = HubSearch(cast(Any, None), WorkerSettings(data=tmp_path, offline=True))
    service = ModelServicer(models(), LOADER, offline, cast(Any, None))
    with pytest.raises(FailedPrecondition, match="offline"):
        await service.SearchModels(model_pb2.SearchModelsRequest(), None)
    for limit in (0, 51):
        with pytest.raises(InvalidArgument, match="limit"):
            await service.SearchModels(model_pb2.SearchModelsRequest(limit=limit), None)
    with pytest.raises(InvalidArgument, match="query"):
        await service.SearchModels(model_pb2.SearchModelsRequest(query="x" * 257), None)
    for name in ("", "llama", "../x", "/models/llama", "a/b/c"):
        with pytest.raises(InvalidArgument, match="model_id"):
            await anext(service.PullModel(model_pb2.PullModelRequest(model_id=name), None))
    (tmp_path / "org" / "here").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidArgument, match="is a directory"):
        await anext(service.PullModel(model_pb2.PullModelRequest(model_id="org/here"), None))


async def test_a_hub_that_never_lists_holds_up_its_own_threads_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    never = threading.Event()
    monkeypatch.setattr("inference_service.hub.searching.search", lambda *_, **__: never.wait() and [])
    hub = HubSearch(cast(Any, None), WorkerSettings(data=tmp_path), seconds=0.05)
    try:
        for _ in range(40):  # more than the worker has threads for files
            with pytest.raises(Unavailable, match="did not answer the search within"):
                await hub.find(["llama"], 10)
        await asyncio.to_thread(int)
    finally:
        never.set()
        hub.stop()

from types import SimpleNamespace
from typing import Any, cast

import mlx.core as mx
import pytest

from agentmem.errors import InvalidArgument, NotFound
from agentmem.models import RegisteredModel
from agentmem.v1 import model_pb2
from inference_service.engine.geometry import Geometry, LayerGroup
from inference_service.models.serving import Models
from inference_service.servicers.servicer_models import ModelServicer
from inference_service.settings import WorkerSettings
from inference_service.text.tool_calls import CallSyntax
from tests.inference_service.real_tokenizers import byte_level

GEOMETRY = Geometry(8, mx.bfloat16, 4, 64, LayerGroup((0, 1, 2), 2, 64, 128), LayerGroup((3,), 2, 64, 128, 512))
LOADED = SimpleNamespace(
    model_id="tiny",
    architecture="llama",
    context_length=4096,
    vocab_size=300,
    geometry=GEOMETRY,
    fingerprint="f" * 64,
    weight_bytes=12345,
    paths=(SimpleNamespace(phase="decode", path="quantized_matmul", relative_error=1e-6, note="why"),),
    tokenizer=byte_level(),
    call_syntax=CallSyntax("json_tools", b"<tool_call>", b"</tool_call>", lambda _text, _tools: None),
)


def models(*names: str) -> Models:
    return Models(
        {name: RegisteredModel(name, name) for name in names or ("tiny", "b", "a")}, cast(Any, None), WorkerSettings()
    )


async def page(of: Models, **fields: Any) -> model_pb2.ListModelsResponse:
    return await ModelServicer(of).ListModels(model_pb2.ListModelsRequest(**fields), None)


async def get(of: Models, model_id: str = "") -> model_pb2.Model:
    return (await ModelServicer(of).GetModel(model_pb2.GetModelRequest(model_id=model_id), None)).model


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


@pytest.mark.parametrize("size", [0, -1, 1001])
async def test_bad_page_size(size: int) -> None:
    with pytest.raises(InvalidArgument) as caught:
        await page(models(), page_size=size)
    assert caught.value.field == "page_size"


@pytest.mark.parametrize("token", ["x", "é", "====", "LTE=", "OTk=", "\0", "eA=="])
async def test_bad_page_token(token: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        await page(models(), page_token=token)
    assert caught.value.field == "page_token"


async def test_states() -> None:
    of = models()
    assert (await get(of)).state == model_pb2.MODEL_STATE_LOADING
    assert (await get(of, "a")).state == model_pb2.MODEL_STATE_REGISTERED
    of.loaded = cast(Any, LOADED)
    assert (await get(of, "tiny")).state == model_pb2.MODEL_STATE_LOADED
    assert (await get(of, "b")).state == model_pb2.MODEL_STATE_REGISTERED


async def test_loaded_model_is_described() -> None:
    of = models()
    of.loaded = cast(Any, LOADED)
    path = model_pb2.AttentionPath(phase="decode", path="quantized_matmul", relative_error=1e-6, note="why")
    assert await get(of) == model_pb2.Model(
        model_id="tiny",
        is_default=True,
        state=model_pb2.MODEL_STATE_LOADED,
        context_length=4096,
        fingerprint="f" * 64,
        architecture="llama",
        dtype="bfloat16",
        kv_bits=4,
        kv_group_size=64,
        full_layers=3,
        sliding_layers=1,
        sliding_window=512,
        kv_heads=2,
        k_head_dim=64,
        v_head_dim=128,
        kv_bytes_per_token=3 * 2 * (64 + 128) * 36 // 64,
        weight_bytes=12345,
        vocab_size=300,
        tool_parser="json_tools",
        tokenizer_hash=byte_level().hash,
        attention_paths=[path],
    )


async def test_unregistered() -> None:
    with pytest.raises(NotFound, match="registered are tiny, b, a"):
        await get(models(), "c")

"""A lost device ends the engine's thread from wherever it is noticed, and nothing takes its errors for a turn's."""

import ast
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from agentmem.errors import FailedPrecondition
from inference_service import engine, models
from inference_service.engine import lost_device, product_speeds
from inference_service.engine.headroom import Headroom, ran_out
from inference_service.engine.lost_device import DeviceLost, end_if_lost, loss
from inference_service.engine.paged.arena import Arena
from inference_service.engine.paged.kernels import Kernels
from inference_service.engine.product_speeds import ProductSpeeds
from inference_service.engine.prompts import guarded
from inference_service.engine.quality import Quality
from inference_service.models import proof
from inference_service.models.capability import refusing
from inference_service.models.kv_setup import KVSetups
from inference_service.models.loaded import LoadedModel
from inference_service.models.proofs import Proofs
from tests.inference_service.engine.batch_turns import begin, prompt_of, until_told

FAILED = "[METAL] Command buffer execution failed: "
LOST = [
    *(
        f"{FAILED}{words}"
        for words in (
            "Insufficient Memory (00000008:kIOGPUCommandBufferCallbackErrorOutOfMemory)",
            "Caused GPU Timeout Error (00000002:kIOGPUCommandBufferCallbackErrorTimeout)",
            "Caused GPU Hang Error (00000003:kIOGPUCommandBufferCallbackErrorHang)",
            "Caused GPU Address Fault Error (0000000b:kIOGPUCommandBufferCallbackErrorPageFault)",
            "Ignored (for causing prior/excessive GPU errors) (00000004:kIOGPUCommandBufferCallbackErrorIgnored)",
            "Discarded (victim of GPU error/recovery) (00000005:kIOGPUCommandBufferCallbackErrorInnocentVictim)",
            "Impacting Interactivity (0000000e:kIOGPUCommandBufferCallbackErrorImpactingInteractivity)",
            "Internal Error (0000000e:Internal Error)",
        )
    ),
    "Ignored (00000004:kIOAccelCommandBufferCallbackErrorSubmissionsIgnored)",
    "cudaStreamSynchronize(stream_) failed: an illegal memory access was encountered",
    "cudaGraphLaunch(graph, stream) failed: unspecified launch failure",
    "cudaEventSynchronize(event_) failed: device-side assert triggered",
    "cudaStreamSynchronize(stream_) failed: uncorrectable ECC error encountered",
    "cuMemcpyDtoH_v2 of CUDA's driver failed: CUDA_ERROR_ILLEGAL_ADDRESS",
]
TIMEOUT = RuntimeError(LOST[1])


@pytest.mark.parametrize("words", LOST)
def test_a_lost_device_is_no_lack_of_memory(words: str) -> None:
    error = RuntimeError(f"{words}\nat eval.cpp:30")
    assert loss(error) == words and not ran_out(error)
    with pytest.raises(DeviceLost, match="^" + words.split("(")[0].replace("[", r"\[")):
        end_if_lost(error)


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("[metal::malloc] Unable to allocate 1024 bytes."),
        RuntimeError("[metal::malloc] Resource limit (499000) exceeded."),
        RuntimeError("cudaMallocAsync(&data, size, stream) failed: out of memory"),
        ValueError(LOST[0]),
        MemoryError(),
    ],
)
def test_other_errors_lose_nothing(error: Exception) -> None:
    end_if_lost(error)


def fails(*_: Any, **__: Any) -> Any:
    raise TIMEOUT


def of_a_shape() -> None:
    layer = type("Layer", (), {"weight": mx.zeros(1)})
    product_speeds._seconds("given", [layer, layer], [(mx.zeros(1),)] * 2, warm_up=True)


RIMS: dict[str, tuple[str, Callable[[LoadedModel], object]]] = {
    "a turn": ("", lambda _: guarded(fails, list)),
    "a model's code": ("", lambda _: refused()),
    "recovery": ("mlx.core.synchronize", lambda _: Headroom().recover()),
    "memory given back": ("mlx.core.synchronize", lambda model: Arena.of(model.arenas.full.layout, 1).release([])),
    "a trial": ("", lambda model: proof._problem(fails, model.geometry, mx.max)),
    "packing": ("inference_service.models.proof.packing_error", lambda model: proof._attention_of(model)),
    "a product": ("inference_service.engine.product_speeds.computed", lambda _: of_a_shape()),
    "its proof": (
        "inference_service.engine.product_speeds.computed",
        lambda _: product_speeds._right(SHAPE, None, {product_speeds.Case(product_speeds.STEP, 1): "skinny"}),
    ),
}
SHAPE = product_speeds.Shape(4, 64, 64, 64, "affine", mx.float32)


def refused() -> None:
    """As `EngineThread` gets what a model's code has raised."""
    try:
        with refusing("it cannot run"):
            fails()
    except FailedPrecondition as error:
        end_if_lost(error)


@pytest.mark.parametrize("rim", RIMS)
def test_who_takes_errors_of_mlx_lets_a_loss_through(
    rim: str, model: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    replaced, call = RIMS[rim]
    if replaced:
        monkeypatch.setattr(replaced, fails)
    with pytest.raises(DeviceLost):
        call(model)


def handlers(path: Path) -> Iterator[tuple[int, str]]:
    """Lines and bodies of a module's handlers of RuntimeError or all errors."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ExceptHandler):
            taken = ast.unparse(node.type) if node.type else "Exception"
        elif isinstance(node, ast.withitem) and ast.unparse(node.context_expr).startswith("suppress("):
            taken = ast.unparse(node.context_expr)
        else:
            continue
        if any(name in taken for name in ("RuntimeError", "Exception")):
            yield node.context_expr.lineno if isinstance(node, ast.withitem) else node.lineno, ast.unparse(node)


ON_THE_LOOP = ("swapping.py", "sources.py")
"""Their errors come from the engine's thread, or from the network."""


def test_each_handler_of_mlx_errors_asks() -> None:
    """Or raises from them: the thread looks at causes."""
    found = [
        (f"{path.name}:{line}", body)
        for package in (engine, models)
        for path in Path(package.__path__[0]).rglob("*.py")
        if path.name not in ON_THE_LOOP
        for line, body in handlers(path)
    ]
    asks = ("end_if_lost", "raise", "lost_device.loss", "what the engine told was not taken")
    assert len(found) > 8
    assert [place for place, body in found if not any(each in body for each in asks)] == []


@pytest.mark.parametrize("what", ["means", "bits", "proofs"])
def test_what_metal_calls_wrong_after_it_was_measured_is_not_kept(
    what: str, model: LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Means, bits and proofs are kept for ever."""
    network = model.engine.model
    KVSetups(tmp_path, quality_check=False).calibrations.keep("known", model.calibration)  # type: ignore[arg-type]
    setups = KVSetups(tmp_path, quality_check=True)
    files = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    monkeypatch.setattr(lost_device, "on_metal", lambda: True)
    monkeypatch.setattr(lost_device, "ask", fails)
    monkeypatch.setattr("inference_service.models.kv_setup.quality_of", lambda *_, **__: Quality(10, {}, ()))
    monkeypatch.setattr("inference_service.models.proofs.prove", lambda *_: proof.Proof(model, (), Kernels()))
    proofs = Proofs(tmp_path / "proofs.json", ProductSpeeds(tmp_path / "products.json"))
    work = {
        "means": lambda: setups.calibrations.of("f", model.geometry, lambda: model.calibration),
        "bits": lambda: setups.of("known", network, model),
        "proofs": lambda: proofs.of("f", model, network),
    }
    with pytest.raises(RuntimeError, match="Timeout"):
        work[what]()
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == files


@pytest.mark.parametrize("where", ["eval", "async_eval"])
def test_turns_of_a_pass_are_not_begun_again(where: str, model: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even alone: all that they would compute is wrong."""
    turns = [begin(model, prompt_of(model, 20, seed), 20) for seed in (1, 2)]
    until_told(model, turns, 3)
    if where == "eval":
        turns.append(begin(model, prompt_of(model, 600, 3), 20))
    monkeypatch.setattr(mx, where, fails)
    with pytest.raises(DeviceLost, match="Caused GPU Timeout Error"):
        until_told(model, turns, 20)
    assert not any(turn.job.future.done() or turn.job.alone for turn in turns)
    monkeypatch.undo()
    for turn in turns:
        turn.cancelled.set()
    model.engine._flights.clear()
    while model.engine.step():
        pass

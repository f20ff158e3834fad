"""A small model, loaded, and what is true of it; tests of other architectures have a `directory` of their own. And
kernels for GPUs without one.
"""

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from benchmarks.loading import load
from inference_service.engine import codec, cuda_copies, cuda_encoding, dequantizing, device, matrices, prompts, skinny
from inference_service.engine.attention import chunks, self_test
from inference_service.engine.paged import arena, write_kernels
from inference_service.engine.paged import attention as paged_attention
from inference_service.engine.paged import kernels as paged_kernels
from inference_service.engine.paged.arena import Arena, DeviceArena
from inference_service.engine.paged.passes import Pass
from inference_service.models import proof
from inference_service.models.fingerprint import ContentHashes
from inference_service.models.loaded import LoadedModel
from tests.inference_service.directories import written_by
from tests.inference_service.engine.cuda_on_cpu import CudaOnCPU
from tests.oracle import Oracle
from tests.tiny_models import write_gemma3, write_llama

directory = written_by([write_llama, write_gemma3])


@pytest.fixture(scope="module")
def oracle(directory: Path) -> Oracle:
    return Oracle(directory)


@pytest.fixture(scope="module")
def model(directory: Path, tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    return load("tiny", str(directory), hashes=ContentHashes(tmp_path_factory.mktemp("hashes") / "weights.json"))


@pytest.fixture
def rides(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many tokens ride as on an NVIDIA GPU."""
    monkeypatch.setattr(prompts, "on_cpu", lambda: False)
    monkeypatch.setattr(prompts, "on_cuda", lambda: True)


@pytest.fixture
def computed(model: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """The tokens of the pieces of each pass that gives logits."""
    found: list[list[int]] = []
    compute = model.arenas.compute

    def noted(network: Any, of: Pass, tokens: mx.array) -> Any:
        found.append([piece.tokens for piece in of.pieces])
        return compute(network, of, tokens)

    monkeypatch.setattr(model.arenas, "compute", noted)
    return found


@pytest.fixture
def few_ride(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prompts of more than 16 tokens are computed in chunks."""
    monkeypatch.setattr(prompts, "_RIDES_ON_CPU", 16)


@pytest.fixture(scope="session")
def cuda_on_cpu(tmp_path_factory: pytest.TempPathFactory) -> CudaOnCPU:
    return CudaOnCPU(tmp_path_factory.mktemp("kernels"))


@pytest.fixture(scope="session")
def cuda_driver(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A library in the place of CUDA's driver, whose device is the host."""
    library = tmp_path_factory.mktemp("driver") / "libcuda.so"
    source = Path(__file__).with_name("cuda_driver_on_cpu.cpp")
    subprocess.run(["g++", "-std=c++17", "-shared", "-fPIC", "-o", library, source], check=True)
    return str(library)


@pytest.fixture
def kernels(cuda_on_cpu: CudaOnCPU, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[None]:
    """Our kernels run: as they are on an NVIDIA GPU, elsewhere as g++ compiles them, over fewer tokens."""
    if device.on_cuda():
        yield
        return
    if not shutil.which("g++"):
        pytest.skip("kernels run on NVIDIA GPUs, or with g++")
    monkeypatch.setattr(cuda_copies, "LIBRARY", request.getfixturevalue("cuda_driver"))
    made = (
        cuda_copies.driver,
        chunks._merge_kernel,
        cuda_encoding._encoder,
        skinny._kernel,
        dequantizing._kernel,
        write_kernels._writer,
        write_kernels._based_writer,
        matrices._kernel,
        paged_kernels._decoder,
        paged_kernels._store,
        paged_kernels._load,
        paged_kernels._address,
        paged_attention._decode_kernel,
        paged_attention._prefill_kernel,
        paged_attention._latents_kernel,
    )
    monkeypatch.setattr(mx.fast, "cuda_kernel", cuda_on_cpu)
    for module in (cuda_encoding, dequantizing):
        monkeypatch.setattr(module, "on_cuda", lambda: True)
    monkeypatch.setattr(arena, "address", lambda words: int(np.array(words, copy=False).ctypes.data))
    monkeypatch.setattr(self_test, "_ONE", ((1, (150,)), (1, (90, 260, 40))))
    monkeypatch.setattr(self_test, "_FEW", ((5, (150,)), (20, (70,)), (3, (260, 40))))
    monkeypatch.setattr(self_test, "_ARRAYS", ((30, (260, 40)),))
    for each in made:
        each.cache_clear()
    yield
    for each in made:
        each.cache_clear()


@pytest.fixture
def on_cuda(in_blocks: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proof, "on_cuda", lambda: True)
    monkeypatch.setattr(codec, "on_cpu", lambda: False)


@pytest.fixture
def in_blocks(kernels: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """K and V are in blocks, as on NVIDIA GPUs."""
    monkeypatch.setattr(Arena, "of", staticmethod(DeviceArena))


@pytest.fixture
def replayed(in_blocks: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Call again what is traced, where kernels run as g++ compiles them: those cannot be in a trace of MLX's."""
    if not device.on_cuda():
        monkeypatch.setattr(mx, "compile", lambda step, **_: step)  # mlx-lm gives others, too

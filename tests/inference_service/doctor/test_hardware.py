from pathlib import Path

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


def test_which_build_to_install() -> None:
    assert "cuda13" in advice(["mlx-cpu"], gpus=1, apple=False)
    assert "arm64" in advice([], gpus=0, apple=True)
    assert "'agentmem[cpu]'" in advice(["mlx-cuda-13"], gpus=0, apple=False)

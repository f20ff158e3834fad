import mlx.core as mx
import pytest

from agentmem.process.checkup import State
from inference_service.doctor import hardware
from inference_service.doctor.checks import backend, judge_products, matrix_products

on_cpu = pytest.mark.skipif(mx.default_device().type != mx.DeviceType.cpu, reason="MLX computes on a GPU here")


@on_cpu
def test_a_gpu_that_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware, "nvidia_gpus", lambda: 0)
    (found,) = backend()
    assert found.state is State.OK and found.found.startswith("CPU: ")
    monkeypatch.setattr(hardware, "nvidia_gpus", lambda: 2)
    (found,) = backend()
    assert found.state is State.WARNING and "2 NVIDIA GPUs" in found.found and "cuda13" in found.advice
    monkeypatch.setattr(hardware, "nvidia_gpus", lambda: 0)
    monkeypatch.setattr(hardware, "is_apple_silicon", lambda: True)
    (found,) = backend()
    assert found.state is State.PROBLEM and "arm64" in found.advice


@pytest.mark.slow
def test_products_are_measured() -> None:
    (found,) = matrix_products()
    assert found.facts["flops"] > 0  # type: ignore[operator]


@pytest.mark.parametrize(
    ("flops", "openblas", "state", "advice"),
    [
        (7e9, False, State.WARNING, "apt-get install libopenblas0-pthread"),
        (222e9, False, State.OK, "apt-get install libopenblas0-pthread"),
        (7e9, True, State.WARNING, "what else runs"),
        (222e9, True, State.OK, ""),
    ],
)
def test_what_the_figure_means_on_linux(flops: float, openblas: bool, state: State, advice: str) -> None:
    found = judge_products(flops, openblas)
    assert found.state is state and advice in found.advice


def test_elsewhere_it_is_only_told() -> None:
    assert judge_products(1.0, None).state is State.OK

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from agentmem.distribution import install

_OURS: Final = ("agentmem", "benchmarks", "cache_service", "gateway", "inference_service")

_BACKEND: Final = "metal" if sys.platform == "darwin" else "cpu"


def install_mlx() -> str:
    return f"install MLX for this machine: make setup, or {_backend()} (a Mac needs a Python for arm64)"


@contextmanager
def needing_servers(refusal: Callable[[str], BaseException] = SystemExit) -> Iterator[None]:
    """Raise `refusal` if the block imports what only the services' extra brings."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] in _OURS:
            raise
        raise refusal(
            f"this needs the services' packages, of which {error.name} is not installed: {_backend()}"
        ) from error


def _backend() -> str:
    return f"{install(_BACKEND)}{'' if _BACKEND == 'metal' else ', or cuda13 for an NVIDIA GPU'}"

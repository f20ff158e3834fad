import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

_OURS: Final = ("agentmem", "benchmarks", "cache_service", "gateway", "inference_service")

BACKEND: Final = "metal" if sys.platform == "darwin" else "cpu"

INSTALL: Final = (
    "install MLX for this machine: make setup, or pip install 'agentmem[cpu]' ('agentmem[cuda13]' for an NVIDIA GPU; "
    "a Mac needs a Python for arm64)"
)


@contextmanager
def needing_servers(refusal: Callable[[str], BaseException] = SystemExit) -> Iterator[None]:
    """Raise `refusal` if the block imports what only the services' extra brings."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] in _OURS:
            raise
        raise refusal(
            f"this needs the services' packages, of which {error.name} is not installed: "
            f"pip install 'agentmem[{BACKEND}]'{'' if BACKEND == 'metal' else ', or cuda13 for an NVIDIA GPU'}"
        ) from error

"""The package's extras: what says which one to install where a package is missing."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

_OURS: Final = ("agentmem", "benchmarks", "cache_service", "gateway", "inference_service")

BACKEND: Final = "metal" if sys.platform == "darwin" else "cpu"
"""The extra that a machine takes which runs the services."""

INSTALL: Final = (
    "install MLX for this machine: make setup, or pip install 'agentmem[cpu]' ('agentmem[cuda13]' for an NVIDIA GPU; "
    "a Mac needs a Python for arm64)"
)


@contextmanager
def needing_servers(refusal: Callable[[str], BaseException] = SystemExit) -> Iterator[None]:
    """Raise `refusal`, made of one line for people, where the block imports what only comes with the services' extra.

    SystemExit writes the line to stderr, and is the status of what can't be served (agentmem.process.service).
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] in _OURS:
            raise
        raise refusal(
            f"this needs the services' packages, of which {error.name} is not installed: "
            f"pip install 'agentmem[{BACKEND}]'{'' if BACKEND == 'metal' else ', or cuda13 for an NVIDIA GPU'}"
        ) from error

"""The inference worker's process: `agentmem-worker`, or `python -m inference_service`."""

from __future__ import annotations

import asyncio
import importlib
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from agentmem.errors import FailedPrecondition
from agentmem.extras import needing_servers
from agentmem.process.macos import mend_import, unfit_python

if TYPE_CHECKING:
    from inference_service.settings import WorkerSettings


def main(arguments: Sequence[str] | None = None) -> None:
    """Run until SIGTERM or SIGINT; exit as agentmem.process.service says."""
    with needing_servers():
        from agentmem.process.service import run_service
        from inference_service.settings import WorkerSettings
    run_service("worker", WorkerSettings, _serve, arguments)


_UNUSED: Final = ("torch", "sklearn")
"""transformers would import them for seconds, where they are installed; tokenizers and templates need neither."""


async def _serve(settings: WorkerSettings, stopping: asyncio.Event) -> int | None:
    """Raises FailedPrecondition if MLX cannot be imported."""
    if problem := unfit_python():
        raise FailedPrecondition(problem)
    sys.modules |= dict.fromkeys(_UNUSED)  # type: ignore[arg-type]
    try:
        for module in ("mlx.core", "mlx_lm"):
            importlib.import_module(module)
    except (ImportError, OSError, RuntimeError) as error:
        raise FailedPrecondition(f"MLX cannot be imported: {error}; {mend_import(error)}") from error
    from inference_service import heap
    from inference_service.process import serve

    heap.keep()
    return await serve(settings, stopping)


if __name__ == "__main__":
    main()

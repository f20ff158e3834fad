"""A GPU that fails, for the worker of `agentmem up`: a folder for PYTHONPATH.

Where the file that LOST_GPU names is there, it is removed, and the GPU fails at the place that it names:

eval     at the next evaluation
write    as a file of KV is read from memory, which nobody is told before the next evaluation

From then on each evaluation raises as Metal does, and the KV in memory is wrong.
"""

import os
import sys
from pathlib import Path
from typing import Any

_FAILED = "[METAL] Command buffer execution failed: "
FAILS = f"{_FAILED}Caused GPU Timeout Error (00000002:kIOGPUCommandBufferCallbackErrorTimeout)"
IGNORED = f"{_FAILED}Ignored (for causing prior/excessive GPU errors) (00000004)"


def fail(file: Path) -> None:
    import mlx.core as mx
    import numpy as np

    from inference_service.engine import lost_device, thread
    from inference_service.engine.paged.arena import HostArena
    from inference_service.turns.persisting import State

    segments: list[Any] = []
    raised: list[str] = []

    def lose(place: str) -> None:
        try:
            if file.read_text() != place:
                return
        except FileNotFoundError:
            return
        file.unlink()
        raised.append(IGNORED)
        for words in segments:
            np.asarray(memoryview(words))[:] = 0x40404040  # 3.0, and codes of all kinds

    def failing(evaluate: Any) -> Any:
        def checked(*arrays: Any) -> Any:
            before = len(raised)
            lose("eval")
            if raised:
                raise RuntimeError(raised[0] if before else FAILS)
            return evaluate(*arrays)

        return checked

    taken, read = HostArena._taken, State.read

    def noted(self: HostArena, segment: int, words: Any) -> None:
        segments.append(words)
        taken(self, segment, words)

    def reading(self: State, header: Any) -> Any:
        lose("write")
        return read(self, header)

    mx.eval, mx.async_eval = failing(mx.eval), failing(mx.async_eval)
    thread.on_metal = lost_device.on_metal = lambda: True  # type: ignore[assignment]
    HostArena._taken, State.read = noted, reading  # type: ignore[method-assign]


if "inference_service" in sys.orig_argv and "LOST_GPU" in os.environ:
    fail(Path(os.environ["LOST_GPU"]))

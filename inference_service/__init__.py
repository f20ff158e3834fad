"""The worker computes turns with MLX, and keeps agents' KV.

__main__.py, process.py, settings.py   the process; worker.py puts it together
threads.py, metrics.py, doctor.py      thread pools, counts, checks for `agentmem doctor`
servicers/   RPCs: requests become the frozen dataclasses of `domain`
turns/       a turn on the event loop
memory/      match, and the plan of what to reuse: pure values
families/    quirks of model families, as tables
text/        tokenizer, templates, streamed text
storage/     the cache store's client, and files of KV
pool/        bookkeeping of KV in memory, and admission
engine/      the thread that owns MLX
models/      models, and how they come and go
hub/         models of a hub
portable/    agents as files
heap.py      garbage collection
json_cache.py   values that cost seconds to find out
"""

import os
import resource
from collections.abc import Callable
from functools import partial


def _set_limit(original: Callable[[int, tuple[int, int]], None], what: int, limits: tuple[int, int]) -> None:
    """Keep the limit of open files, which mlx-lm lowers in each process that imports it."""
    if (what, limits) != (resource.RLIMIT_NOFILE, (2048, 4096)):
        original(what, limits)


resource.setrlimit = partial(_set_limit, resource.setrlimit)
# GPUs would take TF32 for float32 products of several rows and not of one: a token's KV would depend on who shares its
# pass.
os.environ.setdefault("MLX_ENABLE_TF32", "0")

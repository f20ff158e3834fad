"""The worker: computes turns with MLX, and keeps agents' KV where the next turn finds it. Where to read:

__main__.py   the process; `process` serves until a signal, `settings` are its settings
worker.py     the composition root, from listening to draining; `threads` are its pools, `metrics` what it counts
servicers/    the RPCs: requests become the frozen dataclasses of `domain`, once
turns/        a turn on the event loop: planned, restored, generated, committed, its KV kept and written
memory/       an agent's memory as pure values: match, and the plan of what to reuse
families/     quirks of model families, as tables
text/         tokenizer, templates, and text as it streams
storage/      the way to the cache store: ledgers and lookups by gRPC, KV by files
pool/         the bookkeeping of KV in memory, and admission; numbers of blocks, no arrays
engine/       the thread that owns MLX, and what computes on it: KV in blocks, attention, batches,
              and how much quantization changes what a model says
models/       which models there are, how one is loaded, and how they come and go by request
hub/          models of a hub: looked for, judged by this machine's memory, fetched ahead
portable/     agents as files: exported and imported
open_files.py  the limit of open files, which mlx-lm would lower
heap.py       when garbage is looked for
json_cache.py values that cost seconds to find out, kept in a JSON file: measurements, hashes of weights
doctor.py     the worker's checks for `agentmem doctor`
"""

import os

from inference_service.open_files import keep_limit

keep_limit()
# GPUs would take TF32 for float32 products of several rows and not of one: a token's KV would depend on who shares its
# pass.
os.environ.setdefault("MLX_ENABLE_TF32", "0")

"""The worker: computes turns with MLX, and keeps agents' KV where the next turn finds it. Where to read:

__main__.py   the process; `settings` are its settings, `metrics` what it counts
worker.py     all of it put together, from listening to draining
servicers/    the gRPC rim: requests become the frozen dataclasses of `domain`, once
turns/        a turn on the event loop: prepared, run, committed, its KV kept and written
memory/       an agent's memory as pure values: ledger, match, and the plan of what to reuse
text/         tokenizer, templates, and text as it streams
storage/      the way to the cache store: ledgers and lookups by gRPC, KV by files
pool/         whose KV is in memory, and who may begin; numbers of blocks, no arrays
engine/       the thread that owns MLX, and what computes on it: Q4 caches, attention, batches,
              and how much Q4 changes what a model says
models/       which models there are, how one is loaded, and how they come and go by request
answers.py    what a turn answers, as messages of the contract
remembered.py what was found out once and is kept in a JSON file: measurements, hashes of weights
compiled.py   where MLX keeps what it compiles for CPUs
doctor/       the worker's half of `agentmem doctor`
"""

"""KV in the pool's blocks, which running sequences write and read, and where it stays when they end. Where to read:

sequence.py         one sequence's KV: blocks, windows and states, and checkpoints of these
store.py            all KV memory of a model, and the caches for a call of the model
passes.py           one call of the model: tokens of some sequences; caches over arrays
in_blocks.py        caches over blocks that kernels write and read: `write_kernels`, `kernels`, `attention`. NVIDIA GPUs
shares.py           how thread blocks share queries that attend together
writing.py          copies of K and V between arrays and blocks of host memory
traces.py           passes that are traced once and replayed
checkpoints.py      starts of sequences; windows and states in pieces of the pool
arena.py            memory of blocks, on the host or on a device; `layout` places tensors in a block
views.py            caches as arrays, for layers that compute attention themselves
alone.py            caches of one sequence without a pool, for measuring a model
"""

"""KV in the pool's blocks, where running sequences write and read it, and where it stays when they end. Where to read:

sequence.py         one sequence's KV: its blocks, windows and states, and checkpoints of these
store.py            all memory of a model's KV, and what a call of the model gets for its caches
passes.py           one call of the model: tokens of some sequences; caches over arrays
in_blocks.py        caches over blocks, which kernels write and read: `kernels`, `attention`. NVIDIA GPUs
in_segments.py      the same for reading, over host memory: `metal_attention`. Apple's GPUs
writing.py          K and V that were computed as arrays, into blocks and out of them
traces.py           passes that are traced once and replayed
checkpoints.py      what sequences go on from; windows and states in pieces of the pool
arena.py            the memory of blocks, on the host or on a device; `layout` says where tensors lie in a block
views.py            caches as arrays, for layers that compute attention by themselves
alone.py            caches of one sequence without a pool, for what is measured of a model
"""

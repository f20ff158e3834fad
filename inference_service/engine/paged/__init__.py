"""KV in the pool's blocks, which running sequences write and read.

- `sequence`: one sequence's blocks, windows and states
- `store`: all KV memory of a model, and the caches for a call
- `passes`: one call of the model; caches over arrays, and as `views` for layers that attend themselves
- `in_blocks`: caches over blocks, with `write_kernels`, `kernels`, `attention` and `shares`; NVIDIA GPUs
- `writing`: copies between arrays and host memory
- `traces`: passes traced once and replayed
- `checkpoints`: starts of sequences; windows and states in pieces of the pool
- `arena`: memory of blocks; `layout` places tensors in one
- `alone`: caches without a pool, for measuring a model
"""

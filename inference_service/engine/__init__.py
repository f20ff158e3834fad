"""The engine: all code that touches MLX, on the thread of `thread.EngineThread`. Other threads call only what says so.

batching.py        turns of one model: passes of rows and short prompts (`gathering`), chunks of long ones (`prompts`,
                   `prompt_blocks`)
paged/             KV in the pool's blocks; begin at `paged.sequence`
speculation.py     several tokens of a turn in one pass, drafted by `drafting`
network.py         a model called with one flat list of caches; `head` multiplies by the vocabulary
generation.py      one turn: request, progress, result
scheduling.py      which prompt is next, and sizes of chunks
headroom.py        memory checks, and recovery when memory runs out; `lost_device`: what none recovers
prefill.py         a chunk that can stop between layers; `pausing` lets turns go on in other long work
sampling.py        a turn's next token; `choosing` samples for all rows of a pass
attention/         attention over quantized K and V
products.py        products with quantized weights; `product_speeds` chooses their way (`skinny`, `dequantizing`)
quantization.py    K and V in a few bits; `codec` transforms them before, with `rotation`; on NVIDIA GPUs
                   `cuda_encoding` packs and `matrices` multiplies
calibration.py     means and bases of K and V, measured by `calibrating` with `balancing` (`blas_threads`)
cuda_kernel.py     makes our kernels for NVIDIA GPUs
geometry.py        the shape of a model's KV
device.py          the device's memory (`host_memory`, `cuda_copies`); `computing`, `activations`: what chunks take
quality.py         how much quantization changes a model's output
mlx_lm_adapter.py  parts of mlx-lm beyond its public interface
tiktoken_files.py  tokenizers made of a tiktoken.model
"""

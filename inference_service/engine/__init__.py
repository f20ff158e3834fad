"""The engine: everything that touches MLX. One thread owns it (`thread.EngineThread`); call nothing here from another
thread unless its docstring says so. Where to read:

batching.py        the engine of one model: a pass for all running rows and short prompts, then a chunk of a long one;
                   `prompts` is its half that computes prompts
paged/             KV in the pool's blocks: sequences there, passes over them, checkpoints, kernels, traces, and the way
                   to files and back; begin at `paged.sequence`
speculation.py     several tokens of a sequence in one pass, as `drafting` guesses them
network.py         a model as the engine calls it: over one flat list of caches
generation.py      one turn on it: what is wanted, how far it is, what came of it
scheduling.py      whose prompt is next, and how large its chunk is; pure
headroom.py        what is done where the device has less than is about to be taken
prefill.py         a chunk that can stop between layers
pausing.py         pauses of long work on the thread, in which turns go on
prompt_blocks.py   full blocks of a prompt, which are named as they are computed
sampling.py        the next token of a turn: biases, penalties, filters, grammars, log-probabilities; `choosing` has the
                   next tokens of a pass
attention/         over quantized K and V: the backend in models, the kernels' device code, their proof
products.py        products of rows with quantized weights: the ways in a model's layers; `product_speeds` chooses, and
                   `skinny` is a kernel for few rows
quantization.py    the scheme by which K and V are quantized
codec.py           what is done to K and V before that, and undone at reading, with `rotation` and `calibration`
cuda_kernel.py     how kernels of our own are made for NVIDIA GPUs; `cuda_encoding` is one that packs K and V;
                   `metal_kernel` makes those for Apple's
geometry.py        the shape of a model's KV: layer groups, widths, bytes
uploading.py       the way of arrays to host memory and back
tensor_file.py     how MLX's loader is given what only memory has
device.py          the device's memory: how much there is, and is free; `host_memory` says it for a CPU
computing.py       what chunks of a prompt take besides weights and KV; pure
tiktoken_files.py  tokenizers that are a tiktoken.model and code of which it is known what it does
activations.py     what they take at their peak, measured on a GPU
quality.py         how much quantization changes what a model says
mlx_lm_adapter.py  what is used of mlx-lm beyond its public interface
"""

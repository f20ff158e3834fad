"""The engine: all code that touches MLX. One thread owns it (`thread.EngineThread`); call nothing here from another
thread unless its docstring allows it. Where to read:

batching.py        the engine of one model: a pass of all running rows and short prompts, then a chunk of a long prompt;
                   `prompts` is the half that computes prompts
paged/             KV in the pool's blocks: sequences, passes, checkpoints, kernels, traces, and the transfer to and
                   from files; begin at `paged.sequence`
speculation.py     several tokens of a turn in one pass, drafted by `drafting`
network.py         a model called with one flat list of caches
head.py            its product with the vocabulary, for the tokens that have a next one
generation.py      one turn: its request, progress and result
scheduling.py      which prompt is next, and the size of its chunk; pure
gathering.py       how long short prompts wait for turns that come with them
headroom.py        memory checks, and recovery when memory runs out
prefill.py         a chunk that can stop between layers
pausing.py         pauses in long work on the thread, so that turns go on
prompt_blocks.py   full blocks of a prompt, named as they are computed
sampling.py        a turn's next token: biases, penalties, filters, grammars, log-probabilities; `choosing` samples for
                   all rows of a pass
attention/         attention over quantized K and V: the backend in models, kernels, self-test
products.py        products of rows with quantized weights; `product_speeds` chooses their way, `skinny` is a kernel for
                   few rows, `dequantizing` one for weights as a whole
quantization.py    the quantization scheme of K and V
codec.py           K and V centred, balanced and rotated for quantization, with `rotation` and `calibration`, which is
                   measured by `calibrating`, with `balancing`; `matrices` multiplies by heads on NVIDIA GPUs
blas_threads.py    NumPy's linear algebra of small matrices, on one thread
cuda_kernel.py     makes our kernels for NVIDIA GPUs; `cuda_encoding` is one, which packs K and V
geometry.py        the shape of a model's KV: layer groups, widths, bytes
cuda_copies.py     copies between host memory and an NVIDIA GPU's
device.py          the device's memory, total and free; `host_memory` for a CPU
computing.py       memory that chunks of a prompt take besides weights and KV; pure
activations.py     the peak of that memory, measured on a GPU
tiktoken_files.py  tokenizers made of a tiktoken.model and known code
quality.py         how much quantization changes a model's output
mlx_lm_adapter.py  the parts of mlx-lm used beyond its public interface
"""

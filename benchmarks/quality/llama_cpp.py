"""llama.cpp as a peer: the same token ids through a model's own GGUF file, with K and V in formats of llama.cpp.

All are compared with llama.cpp's f16, and have flash attention, without which V cannot be quantized. Releases as that
of llama-cpp-python 0.3.36 rotate K and V; LLAMA_ATTN_ROT_DISABLE=1 measures them without. Products with quantized
weights round activations to 8 bits, which is as much noise as q8_0 makes; with weights in `FLOAT32` it is 0.000001
nats. llama-cpp-python is no dependency.
"""

import ctypes
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, Final, NamedTuple

import mlx.core as mx
import numpy as np

from benchmarks.models import REAL
from benchmarks.quality.measuring import Step, Sums, compared, normalized
from inference_service.text.tokenizer import Tokenizer


class Format(NamedTuple):
    """A type of ggml by its number, and bits of an element with its share of scales."""

    ggml_type: int
    bits: float


LLAMA_BASE: Final = "llama.cpp, f16"
LLAMA_FORMATS: Final = {
    "llama.cpp, q4_0": Format(2, 4.5),
    "llama.cpp, q5_1": Format(7, 6.0),
    "llama.cpp, q8_0": Format(8, 8.5),
}
OWN: Final = "own"
FLOAT32: Final = "float32"
"""Weights of the GGUF file as they are, and in float32."""
F16: Final = Format(1, 16.0)
_ROOM: Final = 256
_PIECE_BYTES: Final = 256


def binding(model: str) -> Any:
    """Return the low-level API of llama-cpp-python. Raises SystemExit."""
    if model not in REAL:
        raise SystemExit(
            f"--llama-cpp reads a model's GGUF file: --model {model} has none, only {', '.join(REAL)} have"
        )
    # Before OpenMP is loaded: threads that spin while they wait take ten times as long where cores are shared.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    try:
        found = import_module("llama_cpp")
    except ImportError as problem:
        raise SystemExit(
            f"--llama-cpp needs llama-cpp-python ({problem}): pip install llama-cpp-python, which compiles llama.cpp, "
            "into the environment that this runs in"
        ) from problem
    if not hasattr(found, "LLAMA_FLASH_ATTN_TYPE_ENABLED"):
        raise SystemExit(
            f"--llama-cpp needs a newer llama-cpp-python than {found.__version__}: pip install -U llama-cpp-python"
        )
    logging.getLogger("llama-cpp-python").setLevel(logging.ERROR)
    return found


class LlamaCpp:
    """A model in llama.cpp with an empty context for each format. One thread."""

    def __init__(self, library: Any, model: Any, contexts: Mapping[str, Any]) -> None:
        self._library = library
        self._contexts = contexts
        self._vocabulary = library.llama_model_get_vocab(model)
        self.vocab_size: int = library.llama_vocab_n_tokens(self._vocabulary)

    def token_bytes(self, token_id: int) -> bytes:
        buffer = ctypes.create_string_buffer(_PIECE_BYTES)
        size = self._library.llama_token_to_piece(self._vocabulary, token_id, buffer, len(buffer), 0, True)
        return buffer.raw[: max(size, 0)]

    def check(self, token_ids: Sequence[int], tokenizer: Tokenizer) -> None:
        """Raise ValueError where a token is another one to llama.cpp than to the model's tokenizer."""
        for token_id in sorted({*token_ids}):
            ours = tokenizer.token_bytes(token_id)
            theirs = self.token_bytes(token_id) if token_id < self.vocab_size else None
            if theirs != ours:
                raise ValueError(f"token {token_id} is {ours!r} to the model's tokenizer, {theirs!r} to llama.cpp")

    def read(self, token_ids: Sequence[int], chunk: int) -> dict[str, dict[int, Sums]]:
        for context in self._contexts.values():
            self._library.llama_memory_clear(self._library.llama_get_memory(context), True)
        return compared(token_ids, {name: self._step(context) for name, context in self._contexts.items()}, chunk)

    def _step(self, context: Any) -> Step:
        def step(token_ids: Sequence[int]) -> mx.array:
            count = len(token_ids)
            # Positions go on by themselves. Without flags, only the last token would have logits.
            batch = self._library.llama_batch(
                n_tokens=count, token=(ctypes.c_int32 * count)(*token_ids), logits=(ctypes.c_int8 * count)(*[1] * count)
            )
            if status := self._library.llama_decode(context, batch):
                raise RuntimeError(f"llama_decode failed with status {status}")
            logits = np.ctypeslib.as_array(self._library.llama_get_logits(context), (count, self.vocab_size))
            return normalized(mx.array(logits))

        return step


@contextmanager
def opened(
    library: Any, gguf: Path, tokens: int, chunk: int, formats: Mapping[str, Format] | None = None
) -> Iterator[LlamaCpp]:
    """Load a model with contexts of so many tokens, `LLAMA_BASE` first. Raises RuntimeError."""
    library.llama_backend_init()
    with ExitStack() as stack:
        model = library.llama_model_load_from_file(str(gguf).encode(), library.llama_model_default_params())
        if not model:
            raise RuntimeError(f"llama.cpp cannot load {gguf}")
        stack.callback(library.llama_model_free, model)
        contexts = {}
        for name, format in {LLAMA_BASE: F16, **(LLAMA_FORMATS if formats is None else formats)}.items():
            context = library.llama_init_from_model(model, _parameters(library, format, tokens, chunk))
            if not context:
                raise RuntimeError(f"llama.cpp has no context with K and V as in {name}")
            stack.callback(library.llama_free, context)
            contexts[name] = context
        yield LlamaCpp(library, model, contexts)


def _parameters(library: Any, format: Format, tokens: int, chunk: int) -> Any:
    found = library.llama_context_default_params()
    found.n_ctx = -(-tokens // _ROOM) * _ROOM
    found.n_batch = found.n_ubatch = chunk
    found.type_k = found.type_v = format.ggml_type
    found.flash_attn_type = library.LLAMA_FLASH_ATTN_TYPE_ENABLED
    found.swa_full = False
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    found.n_threads = found.n_threads_batch = cores
    return found

"""mlx-lm's models call `scaled_dot_product_attention` by a name in their module, which is replaced."""

import sys
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from inference_service.engine.mlx_lm_adapter import ATTENTION_NAME
from inference_service.engine.paged.passes import KVCache, Pieces, Seen, over_pieces


class AttentionBackend:
    """Models of one architecture share a module, and so a backend. `heads` and `latents` are the last call's. Engine
    thread.
    """

    def __init__(self) -> None:
        self.calls = 0
        self.heads = 0
        self.latents = False

    def install(self, model: nn.Module) -> None:
        modules = {sys.modules[type(module).__module__] for _, module in model.named_modules()}
        for module in (module for module in modules if hasattr(module, ATTENTION_NAME)):
            original = getattr(module, ATTENTION_NAME)
            fallback = original.fallback if isinstance(original, _Dispatch) else original
            setattr(module, ATTENTION_NAME, _Dispatch(self, fallback))

    def note(self, heads: int, *, latents: bool) -> None:
        self.calls += 1
        self.heads, self.latents = heads, latents


class _Dispatch:
    """Attends over caches; passes arrays to the original."""

    def __init__(self, backend: AttentionBackend, fallback: Any) -> None:
        self.backend = backend
        self.fallback = fallback

    def __call__(
        self, queries: mx.array, keys: Any, values: Any, cache: Any, scale: float, mask: Any, sinks: Any = None
    ) -> Any:
        if isinstance(cache, KVCache):
            self.backend.note(queries.shape[1], latents=False)
        if isinstance(keys, KVCache):
            return keys.attend(queries, scale, sinks)
        if isinstance(keys, Pieces):
            return over_pieces(self.fallback, queries, keys, keys.window, scale, sinks)
        if isinstance(cache, KVCache) and queries.shape[:3:2] == (1, 1) and mask is None:
            return over_pieces(self.fallback, queries, Pieces([Seen(keys, values, 1)]), 0, scale, sinks)
        return self.fallback(queries, keys, values, cache=cache, scale=scale, mask=mask, sinks=sinks)

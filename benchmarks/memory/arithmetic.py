"""Bytes of KV and agents in a budget, from a model's published config.json and the rules of the design. Pure.

Nothing here comes from the engine, so that what is measured has something to agree with.

    full attention     every token, in blocks of 256
    sliding layers     the last window + 256 tokens in Q4, in pieces of min(256, window); the last window in fp16
                       (mlx-lm's rotating cache)
    an element in Q4   4 bits, and a scale and a bias for each 64
    a pool             to an agent's tokens of blocks the pieces of one window, wherever it begins in the first of them
"""

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

BLOCK = 256
SLACK = 256
GROUP = 64
SAVED_WINDOWS = 3
"""The first and the last two."""


@dataclass(frozen=True)
class Layers:
    """What a model keeps per token: so many layers of each kind, and elements of K and V together in a layer.

    `latent` is how many elements the latent of multi-head latent attention and its rotary key have, which the engine
    keeps in their place, and mlx-lm does not; None for other models.
    """

    full: int
    sliding: int
    window: int
    elements: int
    latent: int | None = None

    @property
    def kept(self) -> int:
        """Elements of a layer and token that the engine keeps."""
        return self.elements if self.latent is None else self.latent

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> "Layers":
        """From a config.json. Raises ValueError for a kind of model that this arithmetic does not know."""
        layers, kind = config["num_hidden_layers"], config["model_type"]
        if kind == "deepseek_v2":
            rope = config["qk_rope_head_dim"]
            head = config["qk_nope_head_dim"] + rope + config["v_head_dim"]
            return cls(layers, 0, 0, config["num_attention_heads"] * head, config["kv_lora_rank"] + rope)
        head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
        elements = 2 * config["num_key_value_heads"] * head_dim
        if kind in ("llama", "qwen2"):
            return cls(layers, 0, 0, elements)
        if kind == "gemma3_text":
            full = layers // config["sliding_window_pattern"]
        elif kind == "gpt_oss":
            full = config["layer_types"].count("full_attention")
        else:
            raise ValueError(f"the KV of {kind!r} models is not known here; add it from the model's published config")
        return cls(full, layers - full, config["sliding_window"], elements)


def fp16_token(layers: Layers) -> int:
    """Bytes of a token in the full-attention layers, fp16."""
    return layers.full * layers.elements * 2


def fp16_agent(layers: Layers, tokens: int) -> int:
    """Bytes of an agent in mlx-lm's default caches, once it decodes."""
    window = layers.sliding * layers.elements * 2 * min(tokens, layers.window)
    return _blocks(tokens) * BLOCK * fp16_token(layers) + window


def fp16_uncapped_agent(layers: Layers, tokens: int) -> int:
    """The same if sliding layers kept every token, as the paper's count for Gemma 3 has it."""
    return _blocks(tokens) * BLOCK * (layers.full + layers.sliding) * layers.elements * 2


def latent_fp16_agent(layers: Layers, tokens: int) -> int | None:
    """The same of the latent alone; None for models that have none."""
    return None if layers.latent is None else _blocks(tokens) * BLOCK * layers.full * layers.latent * 2


def q4_token(layers: Layers, scale_bytes: int) -> int:
    """Bytes of a token in the full-attention layers, Q4 with scales and biases of so many bytes."""
    return _q4(layers.full * layers.kept, scale_bytes)


def q4_window(layers: Layers, scale_bytes: int, tokens: int) -> int:
    """Bytes of so many tokens of the sliding layers."""
    return _q4(layers.sliding * layers.kept * tokens, scale_bytes)


def q4_agent(layers: Layers, tokens: int, scale_bytes: int) -> int:
    """Bytes of an agent in Q4 at rest: its blocks, and the pieces that its window lies in."""
    window = _pieces(layers, tokens) * _piece(layers) if layers.sliding else 0
    return _blocks(tokens) * BLOCK * q4_token(layers, scale_bytes) + q4_window(layers, scale_bytes, window)


def q4_disk(layers: Layers, tokens: int, scale_bytes: int) -> int:
    """Bytes of an agent's files: its blocks, and for sliding layers the windows that are saved."""
    windows = SAVED_WINDOWS * (layers.window + SLACK) if layers.sliding else 0
    return tokens * q4_token(layers, scale_bytes) + q4_window(layers, scale_bytes, windows)


@dataclass(frozen=True)
class Pool:
    """A budget divided: blocks, and pieces of windows; what both take; and how many agents of a length fit."""

    blocks: int
    pieces: int
    bytes: int
    agents: int


def q4_pool(layers: Layers, budget: int, tokens: int, scale_bytes: int, typical: int | None = None) -> Pool:
    """A pool of `budget` bytes, and how many agents of `tokens` tokens it holds.

    It is split for agents of `typical` tokens, by default of `tokens`.
    """
    typical = typical or tokens
    block_bytes = BLOCK * q4_token(layers, scale_bytes)
    piece = _piece(layers)
    per_window = -(-(layers.window + SLACK) // piece) + 1 if layers.sliding else 0
    piece_bytes = q4_window(layers, scale_bytes, piece)
    units = Fraction(budget) / (Fraction(typical, BLOCK) * block_bytes + per_window * piece_bytes)
    blocks, pieces = int(units * Fraction(typical, BLOCK)), int(units * per_window)
    agents = blocks // _blocks(tokens)
    if per_window:  # While an agent is computed it has all pieces of a window, and at rest those that it lies in.
        by_pieces = (pieces - per_window) // _pieces(layers, tokens) + 1 if pieces >= per_window else 0
        agents = min(agents, by_pieces)
    return Pool(blocks, pieces, blocks * block_bytes + pieces * piece_bytes, agents)


def _piece(layers: Layers) -> int:
    return min(BLOCK, layers.window) if layers.sliding else 1


def _pieces(layers: Layers, tokens: int) -> int:
    """Pieces in which the window of so many tokens lies."""
    piece = _piece(layers)
    return -(-tokens // piece) - max(0, tokens - layers.window - SLACK) // piece


def _blocks(tokens: int) -> int:
    return -(-tokens // BLOCK)


def _q4(elements: int, scale_bytes: int) -> int:
    return elements // GROUP * (GROUP // 2 + 2 * scale_bytes)

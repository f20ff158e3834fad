"""How much Q4 changes what a model says: measured once per model, with the bits that it needs.

Affine quantization gives a group of 64 elements of a key one scale. Where single channels of a key are far from zero in
every token, the scale is theirs, and what distinguishes keys is rounded away. Models with a bias on their keys, Qwen
2.5 above all, are reported to lose all sense with 4-bit keys, while most others hardly change; nothing in a model's
config shows which. So the same text is run with unquantized and with quantized KV, and the mean KL divergence of the
next token's distributions says how far they are apart.

What is good was measured on the demo model, with a bias on the slowest channel of RoPE in each layer's first key head,
which changes nothing without quantization (`agentmem bench key-outliers`; 4 bits, 256 tokens of the sample; perplexity
and recall over held-out dialogues). Without a bias: 0.03 nats, recall 100 %; bias 10: 0.08, 100 %; 25: 0.10, perplexity
+18 %, recall 95 %; 50: 0.49, 85 %; 100: 1.2, 29 %. With 8 bits recall stays at 100 % and perplexity moves by less than
0.1 %. It takes text that asks for what stood before: over prose and code alone a model that forgot facts was at 0.011.
"""

import importlib.metadata
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import xxhash
from mlx_lm.models.cache import make_prompt_cache

from inference_service.engine.geometry import Geometry
from inference_service.json_cache import JsonCache
from inference_service.text.tokenizer import Tokenizer

MOST_NATS = 0.08
"""With at most so much divergence bits are good."""

CLEARLY_BETTER = 0.5
"""8 bits are worth twice the memory where they leave at most this share of the divergence."""

_CHUNK = 128
_ROWS = 32
_SAMPLE = Path(__file__).with_name("quality_sample.txt")


@dataclass(frozen=True)
class Quality:
    """What was measured over `tokens` positions, and what follows from it.

    Mean KL divergence of the next token's distribution, unquantized against quantized, in nats; None where it was not
    measured, infinite where the logits with quantized KV are NaN or infinite. Without `comparable`, the model's logits
    are so without any quantization: then nothing was measured.
    """

    tokens: int
    kl_4_bits: float | None = None
    kl_8_bits: float | None = None
    comparable: bool = True

    @property
    def recommended_bits(self) -> int:
        """4 where 4 bits are good; else 8 where those are clearly better, even if not good; 0 where nothing helps."""
        if self.kl_4_bits is None:
            return 0
        if good(self.kl_4_bits):
            return 4
        if self.kl_8_bits is None or not self.kl_8_bits <= CLEARLY_BETTER * self.kl_4_bits:
            return 0
        return 8 if math.isfinite(self.kl_8_bits) else 0

    @property
    def verdict(self) -> str:
        """One line for the log: what was found, and what to do."""
        if self.kl_4_bits is None:
            return "the model's logits are NaN or infinite even without quantized KV; try another dtype"
        found = f"KL divergence with 4 bits {self.kl_4_bits:.2g} nats"
        if self.kl_8_bits is not None:
            found += f", with 8 bits {self.kl_8_bits:.2g}"
        if self.recommended_bits == 4:
            return f"{found}; 4 bits are good"
        if self.recommended_bits == 8 and self.kl_8_bits is not None:
            quality = "good" if good(self.kl_8_bits) else "better, but not good"
            return f"{found}; 8 bits are {quality}: set --kv-bits 8"
        return f"{found}; quantized KV spoils this model, with 4 bits as with 8"


Measure = Callable[[nn.Module, Tokenizer, Geometry, int], Quality]


def good(kl: float) -> bool:
    """Whether a divergence in nats is small enough; NaN never is."""
    return kl <= MOST_NATS


def measure(model: nn.Module, tokenizer: Tokenizer, geometry: Geometry, tokens: int) -> Quality:
    """Run the first `tokens` tokens of the sample without and with quantized KV. Engine thread; takes two prefills.

    Fewer than 128 say little: over the first 64 the unchanged demo model would fail.

    `model` has the attention backend installed, and `geometry` is its own; the group size is that of `geometry`. 4 bits
    are always measured; 8 where `geometry` has them, or else where 4 are bad, which takes two prefills more. Logits are
    held for 128 tokens at a time. Nothing is changed but the backend's count of calls and MLX's peak.
    """
    token_ids = sample(tokenizer, tokens)
    wanted = (4, 8) if geometry.format.k_bits == 8 else (4,)
    try:
        found = dict(zip(wanted, divergences(model, token_ids, geometry, wanted), strict=True))
        if 8 not in found and not good(found[4]):
            found[8] = divergences(model, token_ids, geometry, (8,))[0]
    except _IncomparableError:
        return Quality(len(token_ids), comparable=False)
    finally:
        mx.clear_cache()
    return Quality(len(token_ids), found[4], found.get(8))


def default_tokens() -> int:
    """How many tokens are worth their time: 128 on CPU, where a model of 1B parameters takes minutes without a fast
    BLAS, and 256 elsewhere."""
    return 128 if mx.default_device().type == mx.DeviceType.cpu else 256


def sample(tokenizer: Tokenizer, tokens: int) -> list[int]:
    """The first `tokens` tokens of the sample, after what the tokenizer puts before any text; fewer if it is shorter.

    It states facts and asks for them, which needs keys that are distinct; code, other scripts and figures stand
    between, so that a few hundred tokens have something of each.
    """
    text = _SAMPLE.read_text(encoding="utf-8")
    return [*tokenizer.prefix_ids, *tokenizer.encode(text, parse_special=False)][:tokens]


def divergences(model: nn.Module, token_ids: Sequence[int], geometry: Geometry, bits: Sequence[int]) -> list[float]:
    """Mean KL divergence in nats for each of `bits`, over all positions. Engine thread."""
    plain: list[Any] = make_prompt_cache(model)
    quantized: list[Any] = [
        replace(geometry, format=replace(geometry.format, k_bits=each, v_bits=each)).new_caches() for each in bits
    ]
    sums = [0.0] * len(bits)
    for start in range(0, len(token_ids), _CHUNK):
        chunk = mx.array([token_ids[start : start + _CHUNK]])
        p = _logits(model, chunk, plain)
        if not mx.isfinite(mx.logsumexp(p.astype(mx.float32), axis=-1)).all().item():
            raise _IncomparableError
        for i, caches in enumerate(quantized):
            sums[i] += kl_divergence(p, _logits(model, chunk, caches))
    return [total / len(token_ids) for total in sums]


def kl_divergence(p: mx.array, q: mx.array) -> float:
    """Sum over rows of KL(softmax(p) || softmax(q)) in nats, of logits [rows, vocabulary]; computed in float32.

    Infinite where a row of `q` is no distribution (NaN or infinite logits) or excludes what `p` does not. `p` is finite
    but for tokens that it excludes (-inf). 32 rows at a time.
    """
    total = 0.0
    for start in range(0, p.shape[0], _ROWS):
        rows = (each[start : start + _ROWS].astype(mx.float32) for each in (p, q))
        log_p, log_q = (each - mx.logsumexp(each, axis=-1, keepdims=True) for each in rows)
        # What p excludes counts nothing, whatever q says; but NaN, which equals nothing, stays.
        terms = mx.where(log_p == -mx.inf, 0.0, mx.exp(log_p) * (log_p - log_q))
        piece: float = terms.sum().item()  # type: ignore[assignment]
        if math.isnan(piece):
            return math.inf
        total += max(piece, 0.0)  # rounding can bring equal rows below
    return total


def _logits(model: nn.Module, chunk: mx.array, caches: Sequence[Any]) -> mx.array:
    """Logits [tokens, vocabulary] of a chunk that continues the caches, evaluated."""
    logits: mx.array = model(chunk, cache=caches)[0]
    mx.eval(logits)
    return logits


class _IncomparableError(Exception):
    """The model's own logits are no distribution."""


class QualityChecks:
    """What was measured, remembered in one JSON file. Engine thread only.

    Known by fingerprint, and by what else the figures depend on: device, versions of MLX and mlx-lm, tokenizer, the
    sample and how much of it. What cannot be read from the file is measured again; a file that cannot be written is not
    missed.
    """

    def __init__(self, memory: Path, tokens: int | None = None, measure: Measure = measure) -> None:
        self._memory = JsonCache(memory)
        self._tokens = tokens or default_tokens()
        self._measure = measure

    def of(self, fingerprint: str, model: nn.Module, tokenizer: Tokenizer, geometry: Geometry) -> Quality:
        """What is known of this model, or `measure` of it. The fingerprint covers the bits and group size as well."""
        key = self._key(fingerprint, tokenizer)
        try:
            return _quality(self._memory.get(key))
        except (KeyError, TypeError, ValueError):
            quality = self._measure(model, tokenizer, geometry, self._tokens)
        self._memory.put(key, asdict(quality))
        return quality

    def _key(self, fingerprint: str, tokenizer: Tokenizer) -> str:
        device = mx.device_info()["device_name"]
        versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("mlx", "mlx-lm"))
        text = xxhash.xxh3_128_hexdigest(_SAMPLE.read_bytes())
        return f"{fingerprint}; {device}; {versions}; tokenizer {tokenizer.hash}; {self._tokens} tokens of {text}"


def _quality(remembered: dict[str, Any]) -> Quality:
    """Of the file's figures. Raises KeyError, TypeError or ValueError for what `asdict` of a Quality never gave."""
    figures = {name: remembered[name] for name in ("kl_4_bits", "kl_8_bits")}
    if not all(kl is None or (isinstance(kl, float) and kl >= 0) for kl in figures.values()):
        raise ValueError("a divergence is no number, or negative")
    comparable = remembered["comparable"]
    if comparable is not (figures["kl_4_bits"] is not None):
        raise ValueError("figures contradict each other")
    return Quality(int(remembered["tokens"]), **figures, comparable=comparable)

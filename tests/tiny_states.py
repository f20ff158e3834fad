"""Small random models without full attention, as in `tiny_models`: a checkpoint is all their memory."""

import mlx.core as mx

from tests.tiny_models import writer


def _lively(name: str, value: mx.array) -> mx.array:
    """Replace mlx-lm's zeros, with which nothing would hang on the past; decay is slow."""
    if name.endswith("recurrent_param"):
        return value - 4.0
    return value if mx.any(value).item() else mx.random.normal(value.shape) * 0.5


write_mamba2, write_rwkv7 = writer("mamba2"), writer("rwkv7", _lively)
write_recurrent_gemma = writer("recurrent_gemma", _lively)

STATES = [write_mamba2, write_rwkv7, write_recurrent_gemma]

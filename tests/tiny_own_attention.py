"""Small random models whose layers compute attention by themselves, as in `tiny_models`."""

import mlx.core as mx

from tests.tiny_models import writer

_OUTPUTS = ("post_attention_layernorm.weight", "post_feedforward_layernorm.weight")


def _louder(name: str, value: mx.array) -> mx.array:
    """Let what layers add outweigh the token itself, since the head is the embedding: outputs vary."""
    return value * 30 if name.endswith(_OUTPUTS) else value


write_gemma2, write_llama4 = writer("gemma2", _louder), writer("llama4")
write_stablelm, write_deepseek3, write_deepseek32 = map(writer, ("stablelm", "deepseek3", "deepseek32"))
write_kimi_linear = writer("kimi_linear")

OWN_ATTENTION = [write_stablelm, write_deepseek3, write_deepseek32, write_kimi_linear]
"""Models right in batches."""

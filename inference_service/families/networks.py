"""mlx-lm's modules."""

from typing import Final, NamedTuple

REFUSED: Final = {"mlx_lm.models.phi3small": "tokens of its block-sparse layers see later ones"}
"""Results depend on how a prompt is cut."""

ALONE: Final = {
    "mlx_lm.models.minimax_m3_vl": "its sparse attention selects blocks of slots, those of others among them"
}
"""Results depend on other sequences, which short prompts do not show."""


class Latents(NamedTuple):
    scale: str = "scale"
    last: str = "o_proj"
    all_heads: bool = False


LATENTS: Final = {
    ("mlx_lm.models.bailing_hybrid", "MultiLatentAttention"): Latents(last="dense"),
    ("mlx_lm.models.deepseek_v2", "DeepseekV2Attention"): Latents(all_heads=True),
    ("mlx_lm.models.deepseek_v3", "DeepseekV3Attention"): Latents(),
    ("mlx_lm.models.glm4_moe_lite", "Glm4MoeLiteAttention"): Latents(),
    ("mlx_lm.models.kimi_linear", "KimiMLAAttention"): Latents(),
    ("mlx_lm.models.minicpm3", "Attention"): Latents(scale="softmax_scale", all_heads=True),
    ("mlx_lm.models.youtu_llm", "YoutuLLMAttention"): Latents(all_heads=True),
}

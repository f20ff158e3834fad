"""mlx-lm's modules of networks."""

from typing import Final, NamedTuple

REFUSED: Final = {"mlx_lm.models.phi3small": "tokens of its block-sparse layers see later ones"}
"""Their results depend on how a prompt is cut: faults of mlx-lm."""

ALONE: Final = {
    "mlx_lm.models.minimax_m3_vl": "its sparse attention selects blocks of slots, those of others among them"
}
"""Not batched: their results change with other sequences, which short prompts do not show."""


class Latents(NamedTuple):
    """Attention that can keep latents: attributes of its scale and last projection.

    `all_heads`: mlx-lm keeps K and V of all heads, which one matrix makes from latents.
    """

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
"""Similar ones scale queries, latents or outputs (Mistral 4, LongCat, Kimi K3) and stay as they are."""

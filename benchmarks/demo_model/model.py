"""The demo model in plain PyTorch: a small Llama, with the names and layout of Hugging Face's."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import cast

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.demo_model.tokenizer import CONTEXT, VOCABULARY, write_json


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Geometry, in the words of a Llama's config.json."""

    hidden_size: int = 256
    intermediate_size: int = 768
    num_hidden_layers: int = 6
    num_attention_heads: int = 4
    num_key_value_heads: int = 2
    head_dim: int = 64
    vocab_size: int = VOCABULARY
    max_position_embeddings: int = CONTEXT
    rope_theta: float = 10_000.0
    rms_norm_eps: float = 1e-5
    initializer_range: float = 0.04


class Attention(nn.Module):
    """Causal attention with grouped KV heads and half-split RoPE; with `kv_bits`, over quantized K and V."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.head_dim = config.head_dim
        self.kv_bits: int | None = None
        self.group = config.num_attention_heads // config.num_key_value_heads
        queries, keys = config.num_attention_heads * config.head_dim, config.num_key_value_heads * config.head_dim
        self.q_proj = nn.Linear(config.hidden_size, queries, bias=False)
        self.k_proj = nn.Linear(config.hidden_size, keys, bias=False)
        self.v_proj = nn.Linear(config.hidden_size, keys, bias=False)
        self.o_proj = nn.Linear(queries, config.hidden_size, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        q, k, v = (
            projection(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
            for projection in (self.q_proj, self.k_proj, self.v_proj)
        )
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        if self.kv_bits is not None:
            k, v = quantized(k, self.kv_bits), quantized(v, self.kv_bits)
        k, v = k.repeat_interleave(self.group, dim=1), v.repeat_interleave(self.group, dim=1)
        out = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o_proj(out.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]


class MLP(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))  # type: ignore[no-any-return]


class Layer(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.input_layernorm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.self_attn = Attention(config)
        self.post_attention_layernorm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.mlp = MLP(config)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), cos, sin)
        return x + self.mlp(self.post_attention_layernorm(x))  # type: ignore[no-any-return]


class Llama(nn.Module):
    """Token ids [batch, length] to final hidden states; `logits` applies the tied output embedding."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.num_hidden_layers))
        self.norm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:
                residual = name.endswith(("o_proj.weight", "down_proj.weight"))
                scale = (2 * config.num_hidden_layers) ** -0.5 if residual else 1.0
                nn.init.normal_(parameter, std=config.initializer_range * scale)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed_tokens(tokens)
        frequencies = self.config.rope_theta ** (
            -torch.arange(0, self.config.head_dim, 2, device=x.device, dtype=torch.float32) / self.config.head_dim
        )
        angles = torch.outer(torch.arange(tokens.shape[1], device=x.device, dtype=torch.float32), frequencies)
        cos, sin = angles.cos(), angles.sin()
        for layer in self.layers:
            x = layer(x, cos, sin)
        return self.norm(x)  # type: ignore[no-any-return]

    def quantize_kv(self, bits: int | None) -> None:
        """Compute attention over keys and values of so many bits, or over whole ones."""
        for layer in self.layers:
            cast(Layer, layer).self_attn.kv_bits = bits

    def logits(self, hidden: Tensor) -> Tensor:
        return functional.linear(hidden, self.embed_tokens.weight)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding of x [batch, heads, length, head_dim] in float32, returned in x's dtype."""
    first, second = x.float().chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(x.dtype)


def quantized(x: Tensor, bits: int) -> Tensor:
    """Return x [..., head_dim] after affine quantization in groups of one head (64); gradients pass through."""
    low, high = x.amin(-1, keepdim=True), x.amax(-1, keepdim=True)
    scale = (high - low).clamp_min(1e-7) / (2**bits - 1)
    restored: Tensor = ((x - low) / scale).round() * scale + low
    return x + (restored - x).detach() if x.requires_grad else restored


def save(model: Llama, directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    tensors = {f"model.{name}": value.detach().to("cpu", torch.bfloat16) for name, value in model.named_parameters()}
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    ends = {"bos_token_id": 0, "eos_token_id": 2, "pad_token_id": 3}
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        **asdict(model.config),
        **ends,
        "attention_bias": False,
        "hidden_act": "silu",
        "mlp_bias": False,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
    }
    write_json(directory / "config.json", config)
    write_json(directory / "generation_config.json", {**ends, "do_sample": False})


def load(directory: Path) -> Llama:
    """The model of a directory that `save` wrote, in float32."""
    config = json.loads((directory / "config.json").read_text())
    model = Llama(ModelConfig(**{name: config[name] for name in ModelConfig.__dataclass_fields__}))
    tensors = load_file(directory / "model.safetensors")
    model.load_state_dict({name.removeprefix("model."): tensor.float() for name, tensor in tensors.items()})
    return model

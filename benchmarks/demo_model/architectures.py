"""The demo model's recipe in other architectures: transformers' classes, made, and exported for mlx-lm."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM

from benchmarks.demo_model import layers, model
from benchmarks.demo_model.configurations import CONFIGURATIONS, ENDS, LLAMA, QUICK, UNTIED
from benchmarks.demo_model.tokenizer import write_json


class TransformersModel(nn.Module):
    """A causal model of transformers with this package's attention and experts; `configuration` is its config.json."""

    def __init__(self, configuration: dict[str, Any]) -> None:
        super().__init__()
        self.configuration = configuration
        layers.register()
        config = AutoConfig.for_model(**configuration)
        self.causal = AutoModelForCausalLM.from_config(
            config, attn_implementation=layers.NAME, experts_implementation=layers.NAME, dtype=torch.float32
        )
        self.causal.config.use_cache = False
        layers.fuse_norms(self.causal)
        initialise(self.causal, configuration)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.causal.model(input_ids=tokens, use_cache=False).last_hidden_state  # type: ignore[no-any-return]

    def logits(self, hidden: Tensor) -> Tensor:
        return self.causal.lm_head(hidden)  # type: ignore[no-any-return]


def initialise(causal: nn.Module, configuration: dict[str, Any]) -> None:
    """Draw weights as the Llama's are: normal, and smaller where a layer writes to the residual stream.

    Gemma 3 norms what a layer writes, so there the norm is what is made smaller.
    """
    residual = (2 * configuration["num_hidden_layers"]) ** -0.5
    for name, parameter in causal.named_parameters():
        if parameter.dim() >= 2 and not name.endswith("bias"):
            scale = residual if "o_proj" in name or "down_proj" in name else 1.0
            nn.init.normal_(parameter, std=configuration["initializer_range"] * scale)
        elif configuration["model_type"] == "gemma3_text" and "post_" in name:
            nn.init.constant_(parameter, residual - 1)
        elif name.endswith(("bias", "sinks")):
            nn.init.zeros_(parameter)


def build(architecture: str, quick: bool = False) -> TransformersModel:
    """A model with fresh weights; `quick` gives two layers. Raises KeyError for an unknown architecture."""
    configuration = {"model_type": architecture, **CONFIGURATIONS[architecture], **ENDS}
    if quick:
        configuration |= {name: value for name, value in QUICK.items() if name in configuration}
    return TransformersModel(configuration)


def exported(causal: nn.Module, configuration: dict[str, Any]) -> dict[str, Tensor]:
    """Weights by the names that mlx-lm reads: the hub's, and for GPT-OSS's experts those of mlx-lm's conversions."""
    tensors: dict[str, Tensor] = {}
    for name, value in causal.state_dict().items():
        stem, _, last = name.rpartition(".")
        if name == "lm_head.weight":
            if configuration["model_type"] in UNTIED:
                tensors[name] = value.clone()
        elif not stem.endswith("experts"):
            tensors[name] = value
        elif configuration["model_type"] == "gpt_oss":
            tensors |= {f"{stem}.{key}": part for key, part in _gpt_oss_experts(last, value).items()}
        else:
            gate_up = last == "gate_up_proj"
            for expert, weights in enumerate(value):
                parts = zip(("gate_proj", "up_proj"), weights.chunk(2)) if gate_up else ((last, weights),)  # noqa: B905
                tensors |= {f"{stem}.{expert}.{key}.weight": part for key, part in parts}
    return tensors


def _gpt_oss_experts(name: str, value: Tensor) -> dict[str, Tensor]:
    """transformers holds gate and up interleaved and inputs first; mlx-lm apart and outputs first."""
    kind = "bias" if name.endswith("_bias") else "weight"
    if kind == "weight":
        value = value.transpose(1, 2)
    if name.startswith("down_proj"):
        return {f"down_proj.{kind}": value}
    return {f"gate_proj.{kind}": value[:, ::2], f"up_proj.{kind}": value[:, 1::2]}


def imported(causal: nn.Module, tensors: dict[str, Tensor], configuration: dict[str, Any]) -> None:
    """Load what `exported` gave. Writes into the parameters through the views that `exported` takes of them."""
    with torch.no_grad():
        for name, target in exported(causal, configuration).items():
            target.copy_(tensors[name])


def save(trained: nn.Module, directory: Path) -> None:
    """Write config.json, generation_config.json and bf16 weights that mlx-lm loads."""
    if isinstance(trained, model.Llama):
        model.save(trained, directory)
        return
    assert isinstance(trained, TransformersModel)
    directory.mkdir(parents=True, exist_ok=True)
    tensors = exported(trained.causal, trained.configuration)
    halves = {name: value.detach().to("cpu", torch.bfloat16).contiguous() for name, value in tensors.items()}
    save_file(halves, directory / "model.safetensors", metadata={"format": "pt"})
    tied = trained.configuration["model_type"] not in UNTIED
    config = {**trained.configuration, "tie_word_embeddings": tied, "torch_dtype": "bfloat16"}
    write_json(directory / "config.json", config)
    write_json(directory / "generation_config.json", {**ENDS, "do_sample": False})


def load(directory: Path) -> model.Llama | TransformersModel:
    """The model of a directory that `save` wrote, in float32."""
    configuration = json.loads((directory / "config.json").read_text())
    if configuration["model_type"] == LLAMA:
        return model.load(directory)
    del configuration["torch_dtype"]
    loaded = TransformersModel({**configuration, "tie_word_embeddings": True})
    imported(loaded.causal, load_file(directory / "model.safetensors"), configuration)
    return loaded

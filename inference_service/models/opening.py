"""Opening a model: all that can be known of it before its weights are read, so that what cannot run is refused first.

mlx-lm builds the network over weights that are only named. Running it once lazily tells the shapes of its KV and of its
logits, and computes nothing.
"""

import json
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten
from mlx_lm import tokenizer_utils
from mlx_lm.tokenizer_utils import TokenizerWrapper
from mlx_lm.utils import load_adapters, load_config, load_model, load_tokenizer
from safetensors import SafetensorError, safe_open
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from agentmem.models import ADAPTER_FILES
from inference_service.engine.attention import AttentionSeam
from inference_service.engine.geometry import Geometry
from inference_service.models.capability import Quantization, judged, refusing
from inference_service.models.reasoning import chat_template, reasoning_format
from inference_service.text.reasoning import ReasoningFormat
from inference_service.text.rendering import ChatTemplate, Renderer
from inference_service.text.tokenizer import Tokenizer
from inference_service.text.tool_calls import CallSyntax, form_of

_FOUR_BITS = Quantization()
DTYPES = {"float32": mx.float32, "bfloat16": mx.bfloat16, "float16": mx.float16}


@dataclass(frozen=True)
class ModelSpec:
    """What to load, and how. `dtype` "auto" is float32 on CPU, where all else is slower, and the model's own elsewhere.

    `context_length` None is what the model says.
    """

    model_id: str
    directory: Path
    adapter: Path | None = None
    dtype: str = "auto"
    quantization: Quantization = _FOUR_BITS
    context_length: int | None = None

    @property
    def refused(self) -> AbstractContextManager[None]:
        """Turns whatever loading the model raises into FailedPrecondition that says which model, where, and why."""
        adapter = f" with adapter {self.adapter}" if self.adapter else ""
        return refusing(f"model {self.model_id!r} cannot be loaded from {self.directory}{adapter}")

    @property
    def files(self) -> list[Path]:
        """The model's files that make KV what it is: weights and config.json."""
        return [*sorted(self.directory.glob("model*.safetensors")), self.directory / "config.json"]

    @property
    def adapter_files(self) -> list[Path]:
        """Those of its adapter."""
        return [self.adapter / name for name in ADAPTER_FILES] if self.adapter else []


@dataclass(frozen=True)
class ModelText:
    """What a model is to text: its tokenizer and template, and what its configuration says. Anybody's thread.

    `template` is None where it has none, `call_syntax` where mlx-lm knows no parser for its calls of tools, `reasoning`
    where its format has none.
    """

    tokenizer: Tokenizer
    template: ChatTemplate | None
    call_syntax: CallSyntax | None
    reasoning: ReasoningFormat | None
    context_length: int


@dataclass(frozen=True)
class Outline:
    """All that is known of a model whose weights have names and shapes. Anybody's thread; it holds no weights.

    `vocab_size` is how many logits it has, `weight_bytes` what the weights take in the dtype they are computed in.
    `layer_width` is how many values the projections of its widest layer give for a token.
    """

    spec: ModelSpec
    text: ModelText
    architecture: str
    geometry: Geometry
    vocab_size: int
    weight_bytes: int
    layer_width: int

    @property
    def context_length(self) -> int:
        """Tokens that the context holds."""
        return self.text.context_length

    @property
    def tokenizer(self) -> Tokenizer:
        """Its tokenizer."""
        return self.text.tokenizer

    @property
    def renderer(self) -> Renderer:
        """Renders its inputs. Checkpoints are for models whose windows are kept."""
        return Renderer(
            self.text.tokenizer,
            self.text.template,
            checkpoints=self.geometry.sliding is not None,
            context_length=self.context_length,
            reasoning=self.text.reasoning,
        )


@dataclass(frozen=True)
class OpenedModel:
    """An outline, and mlx-lm's network, whose weights are not read yet. Engine thread."""

    outline: Outline
    network: nn.Module


def open_text(spec: ModelSpec) -> ModelText:
    """Read the tokenizer and the configuration, and look whether the weights are all there. Not on the engine thread.

    Takes a second for a large vocabulary. Raises FailedPrecondition.
    """
    with spec.refused:
        check_weights(spec.directory)
        config = load_config(spec.directory)
        wrapper = load_tokenizer(spec.directory, eos_token_ids=config.get("eos_token_id"))
        tokenizer = Tokenizer(wrapper.backend_tokenizer, wrapper.eos_token_ids)
        return ModelText(
            tokenizer=tokenizer,
            template=chat_template(wrapper),
            call_syntax=_call_syntax(wrapper),
            reasoning=reasoning_format(wrapper, tokenizer),
            context_length=spec.context_length or _context_length(config),
        )


def open_network(spec: ModelSpec, text: ModelText, seam: AttentionSeam) -> OpenedModel:
    """Build the network and look at its shapes. Engine thread; takes a tenth of a second, and reads no weights.

    Raises FailedPrecondition for a model that cannot run in Q4, naming what it is that cannot.
    """
    with spec.refused:
        network, config = load_model(spec.directory, lazy=True)
        if spec.adapter is not None:
            network = load_adapters(network, str(spec.adapter))
            network.eval()
        dtype = spec.dtype
        if dtype == "auto" and mx.default_device().type == mx.DeviceType.cpu:
            dtype = "float32"
        if dtype != "auto":
            network.set_dtype(DTYPES[dtype])
        seam.install(network)
        geometry, vocab_size = judged(spec.model_id, network, seam, spec.quantization)
        outline = Outline(
            spec=spec,
            text=text,
            architecture=str(config.get("model_type", type(network).__module__)),
            geometry=geometry,
            vocab_size=vocab_size,
            weight_bytes=sum(array.nbytes for _, array in tree_flatten(network.parameters())),
            layer_width=_layer_width(network),
        )
        return OpenedModel(outline, network)


def check_weights(directory: Path) -> None:
    """Raise FileNotFoundError for a shard that the index names and that is missing, SafetensorError for a cut file."""
    index = directory / "model.safetensors.index.json"
    if index.exists():
        named = set(json.loads(index.read_text())["weight_map"].values())
        if missing := sorted(name for name in named if not (directory / name).exists()):
            raise FileNotFoundError(f"{', '.join(missing)} missing, which model.safetensors.index.json names")
    for path in sorted(directory.glob("model*.safetensors")):
        try:
            with safe_open(path, "np"):
                pass
        except SafetensorError as error:
            raise SafetensorError(f"{path.name} is damaged or cut short ({error}); fetch it again") from error


def _layer_width(network: Any) -> int:
    """By the rows of its matrices, whether they are quantized or not."""

    def width(layer: Any) -> int:
        matrices = (array for name, array in tree_flatten(layer.parameters()) if name.endswith("weight"))
        return sum(array.shape[-2] for array in matrices if array.ndim > 1)

    return max(map(width, getattr(network, "layers", ())), default=0)


class _AutoTokenizer:
    """In the place of transformers' for mlx-lm: tokenizer.json as it is, which the model was trained with, parsed once.

    For some model types transformers 5 puts rules of its own in the place of that file's: to it a Qwen 2 takes digits
    one by one, though the one at hand may have learned "417" as one token. And these it builds from vocabularies that
    it reads again: with the file itself, which was parsed besides, that took twice as long for Gemma 3.
    """

    @staticmethod
    def from_pretrained(directory: Path, **arguments: Any) -> Any:
        """A tokenizer of the file where there is one, else what transformers makes of the directory."""
        kind = PreTrainedTokenizerFast if (Path(directory) / "tokenizer.json").exists() else AutoTokenizer
        return kind.from_pretrained(directory, **arguments)


tokenizer_utils.AutoTokenizer = _AutoTokenizer


def _call_syntax(wrapper: TokenizerWrapper) -> CallSyntax | None:
    """How the model writes calls of tools, as mlx-lm tells of its settings, template or vocabulary."""
    if not wrapper.has_tool_calling or not wrapper.tool_call_start:
        return None
    name = wrapper.init_kwargs["tool_parser_type"]
    end = wrapper.tool_call_end or ""
    template = wrapper.chat_template if isinstance(wrapper.chat_template, str) else ""
    return CallSyntax(
        name, wrapper.tool_call_start.encode(), end.encode(), wrapper.tool_parser, form_of(name, template)
    )


def _context_length(config: dict[str, Any]) -> int:
    text = config.get("text_config", config)
    for name in ("max_position_embeddings", "n_positions", "max_seq_len"):
        if isinstance(text.get(name), int):
            return int(text[name])
    raise ValueError("config.json does not say how long the context is; set --context-length")

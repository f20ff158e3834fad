"""Opening a model without weights, to refuse early what cannot run."""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import mlx.core as mx
from mlx.utils import tree_flatten
from mlx_lm.utils import load_adapters, load_config, load_model
from safetensors import SafetensorError, safe_open

from agentmem.process.model_folders import CONFIG, WEIGHTS, folder_problem, is_missing, lacking, weight_files
from agentmem.process.models import ADAPTER_FILES
from inference_service.domain import Sampling
from inference_service.engine.attention import AttentionBackend
from inference_service.engine.computing import Cost
from inference_service.engine.device import on_cpu
from inference_service.engine.geometry import Geometry
from inference_service.engine.mlx_lm_adapter import load_tokenizer
from inference_service.engine.network import Network
from inference_service.engine.quantization import KVFormat
from inference_service.engine.scheduling import LayerWork
from inference_service.memory.spacing import checkpoint_distance
from inference_service.models.capability import QuantizationSettings, built, judged, refusing
from inference_service.models.chat_format import call_syntax, chat_template, reasoning_format
from inference_service.models.costs import estimated_cost, layer_work
from inference_service.models.latents import keep_latents
from inference_service.models.sampling_defaults import sampling_defaults
from inference_service.text.reasoning import ReasoningFormat
from inference_service.text.rendering import Renderer
from inference_service.text.template import ChatTemplate
from inference_service.text.tokenizer import Tokenizer
from inference_service.text.tool_calls import CallSyntax

_FOUR_BITS = QuantizationSettings()
DTYPES = {"float32": mx.float32, "bfloat16": mx.bfloat16, "float16": mx.float16}


@dataclass(frozen=True)
class ModelSpec:
    """`dtype` "auto" is float32 on CPU, where it is fastest, or the model's own. `context_length` None: the model's."""

    model_id: str
    directory: Path
    adapter: Path | None = None
    dtype: str = "auto"
    quantization: QuantizationSettings = _FOUR_BITS
    context_length: int | None = None

    @property
    def refused(self) -> AbstractContextManager[None]:
        adapter = f" with adapter {self.adapter}" if self.adapter else ""
        return refusing(f"model {self.model_id!r} cannot be loaded from {self.directory}{adapter}")

    @property
    def files(self) -> list[Path]:
        """Weights and config.json, which determine KV."""
        return [*sorted(self.directory.glob(WEIGHTS)), self.directory / CONFIG]

    @property
    def adapter_files(self) -> list[Path]:
        return [self.adapter / name for name in ADAPTER_FILES] if self.adapter else []


@dataclass(frozen=True)
class ModelText:
    """Tokenizer, template and configuration. Any thread. `context_length` is served, `own_context_length` the
    configuration's or a setting.
    """

    tokenizer: Tokenizer
    template: ChatTemplate | None
    call_syntax: CallSyntax | None
    reasoning: ReasoningFormat | None
    sampling: Sampling
    context_length: int
    own_context_length: int


@dataclass(frozen=True)
class ModelInfo(ModelText):
    """All that is known without weights. Any thread.

    `vocab_size` counts logits. `weight_bytes` includes bases of K and V, in the dtype of computation; `cost` is
    estimated until measured.
    """

    spec: ModelSpec
    architecture: str
    geometry: Geometry
    vocab_size: int
    weight_bytes: int
    cost: Cost
    work: LayerWork

    @property
    def model_id(self) -> str:
        return self.spec.model_id

    @property
    def checkpoint_distance(self) -> int:
        """0 if none are needed."""
        return checkpoint_distance(self.geometry.checkpoint_bytes, self.geometry.bytes_per_token)

    def with_format(self, format: KVFormat) -> Self:
        return replace(self, geometry=replace(self.geometry, format=format))

    @cached_property
    def renderer(self) -> Renderer:
        """Kept windows need checkpoints."""
        return Renderer(
            self.tokenizer,
            self.template,
            checkpoints=not self.geometry.resumes_anywhere,
            context_length=self.context_length,
            reasoning=self.reasoning,
        )


@dataclass(frozen=True)
class ModelShape:
    """A model, as far as it determines memory. Any thread."""

    model_id: str
    geometry: Geometry
    own_context_length: int
    weight_bytes: int
    cost: Cost


def open_text(spec: ModelSpec) -> ModelText:
    """Read text files, and check weights for truncation: up to a second, not on the engine thread. Raises
    FailedPrecondition.
    """
    with spec.refused:
        if problem := folder_problem(spec.directory):
            raise ValueError(problem)
        check_weights(spec.directory)
        config = load_config(spec.directory)
        wrapper = load_tokenizer(spec.directory, eos_token_ids=config.get("eos_token_id"))
        tokenizer = Tokenizer(wrapper.backend_tokenizer, wrapper.eos_token_ids)
        length = spec.context_length or _context_length(config)
        return ModelText(
            tokenizer=tokenizer,
            template=chat_template(wrapper),
            call_syntax=call_syntax(wrapper),
            reasoning=reasoning_format(wrapper, tokenizer),
            sampling=sampling_defaults(spec.directory),
            context_length=length,
            own_context_length=length,
        )


def open_network(spec: ModelSpec, text: ModelText, backend: AttentionBackend) -> tuple[ModelInfo, Network]:
    """Build mlx-lm's network without weights, and find shapes. Engine thread; a tenth of a second. Raises
    FailedPrecondition.
    """
    with spec.refused:
        network, config = _unread_network(spec.directory)
        if spec.adapter is not None:
            network = load_adapters(network, str(spec.adapter))
            network.eval()
        keep_latents(spec.model_id, network, backend)
        if (dtype := _computed_in(spec.dtype)) != "auto":
            network.set_dtype(DTYPES[dtype])
        backend.install(network)
        geometry, vocab_size = judged(spec.model_id, network, backend, spec.quantization)
        info = ModelInfo(
            **vars(text),
            spec=spec,
            architecture=str(config.get("model_type", type(network).__module__)),
            geometry=geometry,
            vocab_size=vocab_size,
            weight_bytes=sum(array.nbytes for _, array in tree_flatten(network.parameters())) + geometry.basis_bytes,
            cost=estimated_cost(network, geometry, config),
            work=layer_work(network, geometry, config),
        )
        return info, Network(network, shows_arrays=geometry.shows_arrays)


def shape_of(
    model_id: str,
    config: dict[str, Any],
    element_bytes: Mapping[str, int],
    backend: AttentionBackend,
    quantization: QuantizationSettings = _FOUR_BITS,
) -> ModelShape:
    """Return a shape by config.json and `element_bytes` by safetensors dtype. Thread of `backend`. Raises
    FailedPrecondition.
    """
    with refusing(f"model {model_id!r} cannot be set up from its config.json"):
        network = built(model_id, config, backend)
        own = str(config.get("torch_dtype") or config.get("dtype"))
        dtype = _computed_in("auto")
        network.set_dtype(DTYPES[dtype] if dtype != "auto" else DTYPES.get(own, mx.bfloat16))
        geometry, _ = judged(model_id, network, backend, quantization)
        return ModelShape(
            model_id=model_id,
            geometry=geometry,
            own_context_length=_context_length(config),
            weight_bytes=sum(_computed_bytes(size, stored, dtype) for stored, size in element_bytes.items())
            + geometry.basis_bytes,
            cost=estimated_cost(network, geometry, config),
        )


def _computed_in(dtype: str) -> str:
    return "float32" if dtype == "auto" and on_cpu() else dtype


def _computed_bytes(size: int, stored: str, dtype: str) -> int:
    floats = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}
    if dtype == "auto" or stored not in floats:
        return size
    return size * int(DTYPES[dtype].size) // floats[stored]


def check_weights(directory: Path) -> None:
    for path in weight_files(directory):
        try:
            with safe_open(path, "np"):
                pass
        except SafetensorError as error:
            raise ValueError(f"{path.name} is damaged or cut short ({error}); fetch it again") from error


def _unread_network(directory: Path) -> tuple[Any, dict[str, Any]]:
    """Return mlx-lm's network and configuration. Raises its errors, and FileNotFoundError for an incomplete
    download.
    """
    quantization = _quantization(directory)
    try:
        found: tuple[Any, dict[str, Any]] = load_model(directory, lazy=True, model_config=quantization)
    except Exception as error:
        if missing := lacking(directory):
            raise FileNotFoundError(is_missing(missing)) from error
        raise
    return found


def _quantization(directory: Path) -> dict[str, Any]:
    """Return `quantization` for mlx-lm by `quantization_config`. Raises ValueError without method and bits."""
    config = load_config(directory)
    settings = config.get("quantization_config") or (config.get("text_config") or {}).get("quantization_config")
    if "quantization" in config or not settings or "quant_method" in settings:
        return {}
    if not {"bits", "group_size"} <= settings.keys():
        raise ValueError("quantization_config of config.json has neither quant_method nor bits and group_size")
    return {"quantization": settings}


def _context_length(config: dict[str, Any]) -> int:
    text = config.get("text_config", config)
    for name in ("max_position_embeddings", "n_positions", "max_seq_len"):
        if isinstance(length := text.get(name), int) and length > 0:
            return length
    raise ValueError("config.json does not say how long the context is; set --context-length")

"""A small random model of a type, as files that a worker loads."""

import json
from pathlib import Path

import mlx.core as mx
from mlx.utils import tree_flatten

from benchmarks.random_models import write_tokenizer
from inference_service.engine.attention.backend import AttentionBackend
from inference_service.engine.mlx_lm_adapter import model_classes
from inference_service.models.capability import QuantizationSettings, built, judged, refusing
from tests.model_types.configs import VOCABULARY, Config

_SHARPER = 3.0
"""Times mlx-lm's own initial weights: with those alone, what a model says hardly hangs on what it was told."""


def write(config: Config, directory: Path) -> None:
    """Weights, config.json and a tokenizer. Raises what mlx-lm's code raises."""
    directory.mkdir(parents=True, exist_ok=True)
    write_tokenizer(directory, VOCABULARY)
    (directory / "config.json").write_text(json.dumps(config))
    mx.random.seed(0)
    model_class, arguments = model_classes(config)
    parameters = tree_flatten(model_class(arguments.from_dict(config)).parameters())
    weights = {name: _drawn(name, value) for name, value in parameters}
    mx.save_safetensors(str(directory / "model.safetensors"), weights, metadata={"format": "mlx"})


def _drawn(name: str, value: mx.array) -> mx.array:
    """A weight that matters: none is left at zero, and matrices are sharper than mlx-lm draws them."""
    if value.dtype == mx.uint32:
        return mx.random.randint(0, 1 << 31, value.shape).astype(mx.uint32)
    if name.endswith(("sinks", "bias")) or not mx.any(value).item():
        return (mx.random.normal(value.shape) * 0.3).astype(value.dtype)
    return value * _SHARPER if value.ndim > 1 else value


def check_config(model: str, config: Config, backend: AttentionBackend, quantization: QuantizationSettings) -> None:
    """Raise FailedPrecondition for a model that could not run, by its config.json alone.

    `backend` is that of the loaded models: another one would take their place in the modules that they share with this
    one.
    """
    with refusing(f"model {model!r} cannot be set up from its config.json"):
        judged(model, built(model, config, backend), backend, quantization)

"""The models of a benchmark's `--model`: "demo", the bundled one, a real one out of packages, or NAME=DIRECTORY."""

import json
import shutil
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import mlx.core as mx

from benchmarks.results import backend

REAL: Final = ("smollm2", "gemma3")
"""Modules of these names fetch them."""
DEMO = Path(__file__).parents[1] / "inference_service" / "demo_model"


def model_name(model: str) -> str:
    return model.partition("=")[0]


def model_directory(model: str) -> Path:
    """Raises SystemExit and Unavailable."""
    if model in REAL:
        return _module(model).directory()  # type: ignore[no-any-return]
    directory = DEMO if model == "demo" else Path(model.partition("=")[2])
    if not model_name(model) or not (directory / "config.json").exists():
        known = f"demo, {', '.join(REAL)}, or NAME=DIRECTORY of a model, which has a config.json"
        raise SystemExit(f"--model {model}: give {known}")
    return directory


def model_gguf(model: str) -> Path | None:
    """Return the file that a real model was made of; None for others. Raises Unavailable."""
    return _module(model).gguf() if model in REAL else None


def _module(model: str) -> Any:
    return import_module(f"benchmarks.{model}")


def kv_elements(directory: Path) -> int:
    """Return the elements of a token's K and V; sliding layers count as if they kept everything."""
    config = json.loads((directory / "config.json").read_text())
    heads = config.get("num_key_value_heads", config["num_attention_heads"])
    width = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    return int(2 * config["num_hidden_layers"] * heads * width)


def kv_bytes_per_token(directory: Path, bytes_per_scale: int = 4) -> int:
    return round(kv_elements(directory) * (1 / 2 + 2 * bytes_per_scale / 64))


@dataclass(frozen=True)
class Weights:
    """A model as servers read it; `dtype` is what MLX computes in."""

    name: str
    directory: Path
    gguf: Path | None
    dtype: str


def weights(model: str, gguf: Path | None, root: Path) -> Weights:
    """Raises SystemExit and Unavailable. On a CPU float32: MLX is fifty times as slow in 16 bits."""
    name, directory, found = model_name(model), model_directory(model), gguf or model_gguf(model)
    if backend() == "gpu":
        return Weights(name, directory, found, "the file's")
    return Weights(name, in_float32(directory, root / f"{name}-float32"), found, "float32")


def in_float32(directory: Path, into: Path) -> Path:
    into.mkdir(parents=True)
    for path in directory.iterdir():
        if path.suffix == ".safetensors":
            arrays = mx.load(str(path))
            assert isinstance(arrays, dict)
            floats = {
                name: array.astype(mx.float32) if mx.issubdtype(array.dtype, mx.floating) else array
                for name, array in arrays.items()
            }
            mx.save_safetensors(str(into / path.name), floats, metadata={"format": "mlx"})
        elif path.is_file():
            shutil.copy(path, into / path.name)
    return into

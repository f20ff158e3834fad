"""The same weights as each server reads them: a directory for MLX's, a GGUF file for llama.cpp's."""

import shutil
from dataclasses import dataclass
from pathlib import Path

import mlx.core as mx

from benchmarks.models import model_directory, model_gguf, model_name
from benchmarks.results import backend


@dataclass(frozen=True)
class Weights:
    """A model: its name, MLX's directory, the GGUF file, if there is one, and the dtype that MLX computes in."""

    name: str
    directory: Path
    gguf: Path | None
    dtype: str


def weights(model: str, gguf: Path | None, root: Path) -> Weights:
    """`--model` and `--gguf`, ready to be served. Raises SystemExit for a model that is none, and Unavailable.

    On a CPU the directory is a copy in float32 under `root`: `mlx_lm.server` computes in the dtype of the file, and
    MLX's products in 16 bits are fifty times as slow there.
    """
    name, directory, found = model_name(model), model_directory(model), gguf or model_gguf(model)
    if backend() == "gpu":
        return Weights(name, directory, found, "the file's")
    return Weights(name, in_float32(directory, root / f"{name}-float32"), found, "float32")


def in_float32(directory: Path, into: Path) -> Path:
    """A copy of a model's directory whose floating-point weights are float32."""
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

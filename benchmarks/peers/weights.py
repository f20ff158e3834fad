"""The same weights as each server reads them: a directory for MLX's, a GGUF file for llama.cpp's."""

import shutil
from dataclasses import dataclass
from pathlib import Path

import mlx.core as mx

from benchmarks.models import model_directory, model_gguf, model_name
from benchmarks.results import backend


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

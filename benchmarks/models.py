"""The models of a benchmark's `--model`: "demo", the bundled one, a real one out of packages, or NAME=DIRECTORY."""

import json
from importlib import import_module
from pathlib import Path
from typing import Any, Final

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


def kv_bytes_per_token(directory: Path, bytes_per_scale: int = 4) -> int:
    """Return about the bytes of a token's Q4 KV; sliding layers count as if they kept everything."""
    config = json.loads((directory / "config.json").read_text())
    heads = config.get("num_key_value_heads", config["num_attention_heads"])
    width = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    elements: int = 2 * config["num_hidden_layers"] * heads * width
    return round(elements * (1 / 2 + 2 * bytes_per_scale / 64))

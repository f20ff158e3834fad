"""A model's folder, judged by its files. Imports no MLX, which takes seconds, and refuses nothing that mlx-lm loads.

Conversions may have their original's `model.safetensors.index.json`, so it is not read.
"""

import ast
import json
import re
import shlex
from collections.abc import Iterator, Sequence
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from agentmem.diagnostics import did_you_mean

CONFIG: Final = "config.json"
WEIGHTS: Final = "model*.safetensors"

_NUMBERED: Final = re.compile(r"(.*-)(\d+)-of-(\d+)(\.safetensors)")
_MOST_FILES: Final = 10_000
_NAMED: Final = 3
_LFS: Final = b"version https://git-lfs"
_GGUF: Final = b"GGUF"
_TOKENIZERS: Final = frozenset({"tokenizer.json", "vocab.json", "vocab.txt", "merges.txt"})
_TOKENIZER_SUFFIXES: Final = frozenset({".model", ".tiktoken", ".bpe", ".spm", ".vocab"})
_OTHER_WEIGHTS: Final = frozenset({".bin", ".pt", ".pth", ".npz", ".safetensors", ".onnx", ".h5", ".msgpack"})
_BITS: Final = re.compile(r"[-._](i?q\d|u?d-q\d|b?f16|fp?16|f32|gguf|\d{5}-of)", re.IGNORECASE)
_TABLES: Final = ("MODEL_REMAPPING", "MODEL_ARCHITECTURE_REMAPPING")


def file_problem(path: Path) -> str:
    """Return why a file is no model."""
    if path.suffix.lower() == ".gguf" or (path.is_file() and _begins(path, _GGUF)):
        return f"{path} is a GGUF file, and {_search(path.name)}"
    return f"{path} is not a directory"


def folder_problem(folder: Path) -> str:
    """Return why no model can be loaded from a directory, as the rest of a sentence about it, or ""."""
    try:
        files = {path.name: path for path in folder.iterdir() if path.is_file()}
        weights = weight_files(folder)
        gguf = sorted(name for name in files if name.lower().endswith(".gguf"))
        if gguf and not weights:
            return f"it has only GGUF, and {_search(gguf[0])}"
        if CONFIG not in files:
            return _without_config(folder, files)
        return (
            _problem_of_config(files[CONFIG])
            or _problem_of_weights(folder, weights, files)
            or _problem_of_tokenizer(files)
        )
    except OSError as error:
        return f"{Path(error.filename or folder).name} cannot be read ({error.strerror})"


def _begins(path: Path, with_bytes: bytes) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(len(with_bytes)) == with_bytes
    except OSError:
        return False


def weight_files(directory: Path) -> list[Path]:
    """Broken links are left out."""
    return sorted(path for path in directory.glob(WEIGHTS) if path.is_file())


def lacking(directory: Path) -> list[str]:
    """Return files that a download lacks, by numbers in names."""
    here = {path.name for path in weight_files(directory)}
    return sorted({sibling for name in here for sibling in _siblings(name)} - here)


def is_missing(files: Sequence[str]) -> str:
    named = ", ".join(files) if len(files) <= _NAMED else f"{', '.join(files[:_NAMED])} and {len(files) - _NAMED} more"
    return f"{named} {'is' if len(files) == 1 else 'are'} missing; fetch it again"


def _siblings(name: str) -> Iterator[str]:
    if (parts := _NUMBERED.fullmatch(name)) and int(parts[3]) <= _MOST_FILES:
        for number in range(1, int(parts[3]) + 1):
            yield f"{parts[1]}{number:0{len(parts[2])}}-of-{parts[3]}{parts[4]}"


def _search(name: str) -> str:
    """Return how to find a conversion of a GGUF file's model."""
    words = _BITS.split(Path(name).stem)[0]
    return f"Agentmem runs MLX safetensors: `agentmem models search {shlex.quote(words)}` finds one"


def _without_config(folder: Path, files: dict[str, Path]) -> str:
    if "adapter_config.json" in files:
        return "it is a LoRA adapter; give its base as --model, and this as --adapter BASE+NAME=DIRECTORY"
    inside = [path.parent for place in ("*", "snapshots/*") for path in sorted(folder.glob(f"{place}/{CONFIG}"))]
    if inside:
        names = " or ".join(str(path.relative_to(folder)) for path in inside[:3])
        return f"it has no {CONFIG}; did you mean {names} in it?"
    return f"it has no {CONFIG}; give the folder of a model in MLX safetensors, as `agentmem models search` finds them"


def _problem_of_config(path: Path) -> str:
    try:
        config: Any = json.loads(path.read_bytes())
    except ValueError as error:
        return f"{CONFIG} is not JSON ({error}); fetch the model again"
    model_type = config.get("model_type") if isinstance(config, dict) else None
    if not isinstance(model_type, str):
        return f"{CONFIG} names no model_type; take a model that mlx-lm loads: `agentmem models search` finds one"
    known = _known_types()
    if not known or model_type in known or "model_file" in config:
        return ""
    asked = did_you_mean(model_type, known) or "; `agentmem models search` finds models that it does"
    return f"mlx-lm {version('mlx-lm')} does not know its model type {model_type!r}{asked}"


@cache
def _known_types() -> frozenset[str]:
    """Return mlx-lm's model types, by names of files; none where it is not installed, or made otherwise."""
    found = find_spec("mlx_lm")
    if found is None or found.origin is None:
        return frozenset()
    package = Path(found.origin).parent
    try:
        tree = ast.parse((package / "utils.py").read_bytes())
        names = {path.stem for path in (package / "models").iterdir()}
        for node in tree.body:
            match node:
                case ast.Assign(targets=[ast.Name(id=name)], value=table) if name in _TABLES:
                    keys = ast.literal_eval(table)
                    names |= {key if isinstance(key, str) else key[0] for key in keys}
    except (OSError, ValueError, SyntaxError):
        return frozenset()
    return frozenset(names)


def _problem_of_weights(folder: Path, weights: list[Path], files: dict[str, Path]) -> str:
    if not weights:
        others = sorted(name for name, path in files.items() if path.suffix in _OTHER_WEIGHTS)
        has = f", but {', '.join(others[:3])}" if others else ""
        return f"it has no weights ({WEIGHTS}){has}; fetch the model again, or take one in MLX safetensors"
    missing = lacking(folder)
    if missing and all(any(name in missing for name in _siblings(path.name)) for path in weights):
        return is_missing(missing)
    for path in weights:
        if _begins(path, _LFS):
            return f"{path.name} is only a pointer of Git LFS; `git lfs pull` in that folder fetches the file"
    return ""


def _problem_of_tokenizer(files: dict[str, Path]) -> str:
    if files.keys() & _TOKENIZERS or any(path.suffix in _TOKENIZER_SUFFIXES for path in files.values()):
        return ""
    if "tekken.json" in files:
        return (
            "tokenizer.json is missing: tekken.json alone is Mistral's own format; put the tokenizer.json and the "
            "tokenizer_config.json of a conversion there"
        )
    return "it has no tokenizer; copy tokenizer.json and tokenizer_config.json of the model it is made of there"

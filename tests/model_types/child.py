"""The process that builds and runs small models, asked type by type: what mlx-lm's code does may end or stop it."""

import logging
import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import redirect_stdout
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import ArraysCache, CacheList, ChunkedKVCache, KVCache, RotatingKVCache, make_prompt_cache

from agentmem.errors import FailedPrecondition
from benchmarks import children
from benchmarks.loading import load
from inference_service.engine.geometry import Geometry
from inference_service.engine.mlx_lm_adapter import model_classes
from inference_service.models.capability import QuantizationSettings
from inference_service.models.finding import ATTENTION
from inference_service.models.fingerprint import ContentHashes
from inference_service.models.loaded import LoadedModel
from tests.model_types import building, checking
from tests.model_types.configs import Config, config

_POOL_BYTES, _BATCH_BYTES = 64 << 20, 64 << 20
_CALIBRATION_TOKENS = 64
"""Means only have to be there."""

_KINDS = {KVCache: "full", RotatingKVCache: "sliding", ChunkedKVCache: "chunked", ArraysCache: "recurrent"}


def examine(name: str) -> dict[str, Any]:
    """A type's line as JSON, of one that there is a config for; see `page.Line`."""
    found = config(name)
    assert found is not None
    with redirect_stdout(sys.stderr):  # Where mlx-lm's code prints; our answers go to stdout.
        line: dict[str, Any] = {"name": name}
        try:
            building.check_config(name, found, ATTENTION, QuantizationSettings())
        except FailedPrecondition as error:
            return line | {"kinds": _kinds_of(found), "refused": reason(name, error.message)}
        except Exception as error:  # noqa: BLE001 - whatever mlx-lm's code raises is what is to be found
            return line | {"faults": [f"its config.json raises {_words(error)}"]}
        return line | _run(name, found)


def _run(name: str, found: Config) -> dict[str, Any]:
    """Return the line of a model that could run by its config.json."""
    with TemporaryDirectory() as directory:
        try:
            building.write(found, Path(directory) / name)
            model = load(
                name,
                str(Path(directory) / name),
                pool_bytes=_POOL_BYTES,
                batch_bytes=_BATCH_BYTES,
                hashes=ContentHashes(Path(directory) / "weights.json"),
                calibration_tokens=_CALIBRATION_TOKENS,
            )
        except FailedPrecondition as error:
            return {"faults": [f"it is refused only when its weights are read: {error.message}"]}
        except Exception as error:  # noqa: BLE001 - as above
            return {"faults": [f"loading it raises {_words(error)}"]}
        try:
            return _checked(model)
        finally:
            model.release()
            mx.clear_cache()


def _checked(model: LoadedModel) -> dict[str, Any]:
    geometry = model.geometry
    network: Any = model.engine.model
    line = {
        "kinds": kinds(network.own_caches()),
        "token_bytes": geometry.bytes_per_token,
        "checkpoint_bytes": geometry.checkpoint_bytes,
        "resumes": resumes(geometry),
        "batched": network.rows_together,
    }
    try:
        differences = checking.checked(model)
    except Exception as error:  # noqa: BLE001 - as above
        return line | {"faults": [_words(error)]}
    wrong = ", ".join(checking.wrong(differences))
    return line | {"differences": differences, "faults": [f"it says something else: {wrong}"] if wrong else []}


def _words(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _kinds_of(found: Config) -> str:
    """Return kinds; "" where mlx-lm cannot build a refused model."""
    try:
        model_class, arguments = model_classes(found)
        return kinds(make_prompt_cache(model_class(arguments.from_dict(found))))
    except (Exception, SystemExit):  # noqa: BLE001 - as above; why it is refused has been said
        return ""


def kinds(caches: Sequence[Any]) -> str:
    """Return the kinds of layers, by mlx-lm's caches."""
    return ", ".join(f"{count} {kind}" for kind, count in Counter(map(_kind, caches)).items())


def _kind(cache: Any) -> str:
    if isinstance(cache, CacheList):
        return f"({' + '.join(map(_kind, cache.caches))})"
    return _KINDS.get(type(cache), type(cache).__name__)


def resumes(geometry: Geometry) -> str:
    """Where a prompt that leaves the conversation can go on."""
    if geometry.resumes_anywhere:
        return "anywhere"
    return "at a checkpoint" if geometry.states else "up to 256 tokens before a checkpoint"


def reason(name: str, message: str) -> str:
    """Why a model is refused, without its name and what to do instead."""
    said = message.removeprefix(f"model {name!r} ").removeprefix("cannot run with quantized KV: ")
    return said.partition("; take a model")[0]


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    children.answer({"examine": examine})

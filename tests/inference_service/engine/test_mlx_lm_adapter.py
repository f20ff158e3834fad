"""The parts of mlx-lm that are not its public interface are as the adapter expects.

A failure here after an upgrade of mlx-lm names what changed: adapt `engine/mlx_lm_adapter.py`, run the
oracle tests, and then raise `VERSIONS`.
"""

import importlib
import importlib.metadata
import inspect
import tomllib
from pathlib import Path
from typing import Any

import mlx_lm
import pytest
from mlx_lm import tokenizer_utils, utils
from mlx_lm.models.cache import KVCache, RotatingKVCache
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from inference_service.engine import mlx_lm_adapter
from inference_service.engine.mlx_lm_adapter import ATTENTION_NAME, model_classes

VERSIONS = SpecifierSet(">=0.32.2,<0.33")
"""Versions that the adapter is tested for."""

PROJECT = Path(__file__).parents[3] / "pyproject.toml"


def parameters(function: Any) -> list[str]:
    return list(inspect.signature(function).parameters)


def test_the_installed_version_is_one_that_the_adapter_knows() -> None:
    installed = importlib.metadata.version("mlx-lm")
    assert installed in VERSIONS, f"mlx-lm {installed} is not in {VERSIONS}: check each part below, then raise VERSIONS"


def test_the_project_asks_for_no_other_version() -> None:
    dependencies = map(Requirement, tomllib.loads(PROJECT.read_text())["project"]["optional-dependencies"]["server"])
    [asked] = (each.specifier for each in dependencies if each.name == "mlx-lm")
    assert asked == VERSIONS


def test_the_name_by_which_tokenizers_are_made_is_replaced() -> None:
    assert tokenizer_utils.AutoTokenizer is mlx_lm_adapter._AutoTokenizer
    assert "AutoTokenizer.from_pretrained(" in inspect.getsource(tokenizer_utils.load)
    assert parameters(utils.load_tokenizer)[0] == "model_path" and "eos_token_ids" in parameters(utils.load_tokenizer)
    assert {"lazy"} <= set(parameters(utils.load_model))


@pytest.mark.parametrize(
    "name",
    [
        *("has_thinking", "think_start", "think_end", "structural_markers"),
        *("response_transitions", "response_initial_state"),
        *("has_tool_calling", "tool_call_start", "tool_call_end", "tool_parser", "eos_token_ids"),
    ],
)
def test_a_tokenizer_says_how_chats_are_written(name: str) -> None:
    assert isinstance(getattr(tokenizer_utils.TokenizerWrapper, name), property)


def test_classes_of_a_config_are_found() -> None:
    model, arguments = model_classes({"model_type": "llama"})
    assert (model.__name__, arguments.__name__) == ("Model", "ModelArgs")
    assert model.__module__ == "mlx_lm.models.llama"


def test_a_model_in_the_hubs_local_cache_is_found_by_its_patterns() -> None:
    assert parameters(utils.hf_repo_to_path) == ["hf_repo"]
    assert {"*.json", "model*.safetensors"} <= set(utils.DEFAULT_ALLOW_PATTERNS)


@pytest.mark.parametrize("name", ["llama", "gemma3_text", "qwen3", "gpt_oss", "deepseek_v2"])
def test_models_attend_by_the_name_that_is_replaced(name: str) -> None:
    module = importlib.import_module(f"mlx_lm.models.{name}")
    attend = getattr(module, ATTENTION_NAME)
    fallback = getattr(attend, "fallback", attend)
    assert parameters(fallback)[:3] == ["queries", "keys", "values"]
    assert {"cache", "scale", "mask", "sinks"} <= set(parameters(fallback))


def test_caches_say_what_capability_asks_of_them() -> None:
    cache = RotatingKVCache(max_size=8)
    assert (cache.max_size, cache.keep, cache.empty()) == (8, 0, True)
    assert KVCache().keys is None
    assert mlx_lm.__version__

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

import mlx.core as mx
import mlx_lm
import pytest
from mlx_lm import tokenizer_utils, utils
from mlx_lm.generate import GenerationBatch, StopSequences
from mlx_lm.models.cache import KVCache, RotatingKVCache
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from inference_service.engine import mlx_lm_adapter
from inference_service.engine.mlx_lm_adapter import (
    ATTENTION_NAME,
    begun,
    model_classes,
    sampled_ahead,
    several_steps,
)

VERSIONS = SpecifierSet(">=0.32.2,<0.33")
"""What the adapter was written and tested for."""

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


def test_a_batch_is_made_of_what_the_adapter_gives() -> None:
    assert parameters(GenerationBatch)[:10] == [
        *("model", "uids", "inputs", "prompt_cache", "tokens", "samplers", "fallback_sampler"),
        *("logits_processors", "stop_sequences", "max_tokens"),
    ]
    assert parameters(GenerationBatch.extend) == ["self", "batch"]
    assert parameters(GenerationBatch.filter) == ["self", "keep"]
    assert parameters(GenerationBatch.extract_cache) == ["self", "idx"]
    assert {"uid", "token"} <= GenerationBatch.Response.__dataclass_fields__.keys()
    assert StopSequences([]).matcher().advance(1) is False


class CountingSampler:
    def __init__(self) -> None:
        self.calls: list[tuple[int, ...]] = []

    def __call__(self, logprobs: mx.array) -> mx.array:
        self.calls.append(logprobs.shape)
        return mx.argmax(logprobs, axis=-1)


class Cache:
    """A batch cache that counts."""

    def __init__(self) -> None:
        self.rows = 1

    def extend(self, other: "Cache") -> None:
        self.rows += other.rows

    def filter(self, keep: list[int]) -> None:
        self.rows = len(keep)

    def trim(self, tokens: int) -> None:
        self.trimmed = tokens


def row(uid: int, token: int, sampler: CountingSampler) -> tuple[GenerationBatch, int]:
    def model(tokens: mx.array, cache: Any) -> mx.array:
        return mx.eye(8)[(tokens + 1) % 8]

    made, [first] = begun([uid], model, mx.eye(8)[mx.array([[token]])], [Cache()], [[1, 2, 3]], [sampler], [[]])
    return made, first


def test_a_batch_samples_each_row_once_a_step_and_in_order() -> None:
    samplers = [CountingSampler(), CountingSampler()]
    (batch, first), (other, second) = row(0, 5, samplers[0]), row(1, 2, samplers[1])
    assert (first, second) == (5, 2)
    assert [len(sampler.calls) for sampler in samplers] == [1, 1], "its first token, when it is made"
    batch.extend(other)
    assert [len(sampler.calls) for sampler in samplers] == [1, 1], "joining samples nothing"
    for step in range(3):
        assert [(r.uid, r.token) for r in batch.next()] == [(0, (5 + step) % 8), (1, (2 + step) % 8)]
        assert [sampler.calls for sampler in samplers] == [[(1, 8)] * (step + 2)] * 2
    batch.filter([1])
    assert [sampler.calls for sampler in samplers] == [[(1, 8)] * 4] * 2
    assert [(r.uid, r.token) for r in batch.next()] == [(1, 5)]


def test_a_batch_keeps_its_state_in_attributes_whose_lists_it_changes() -> None:
    batch, _ = row(0, 5, CountingSampler())
    known = {
        *("model", "uids", "prompt_cache", "tokens", "samplers", "fallback_sampler", "logits_processors"),
        *("stop_sequences", "max_tokens", "_current_tokens", "_current_logprobs", "_next_tokens", "_next_logprobs"),
        *("_token_context", "_num_tokens", "_matchers"),
    }
    assert vars(batch).keys() == known, "another attribute might be shared by two batches"


class Shift:
    """A logits processor that remembers the tokens that it was given, and changes by them what is likely."""

    def __init__(self) -> None:
        self.seen: list[list[int]] = []

    def __call__(self, tokens: mx.array, logits: mx.array) -> mx.array:
        self.seen.append(tokens.tolist())  # type: ignore[arg-type]
        return mx.roll(logits, int(tokens[-2].item()) % 2, axis=-1)


@pytest.mark.parametrize("right", [0, 1, 3])
@pytest.mark.parametrize("processed", [False, True])
def test_several_steps_leave_a_batch_as_one_after_the_other_does(right: int, processed: bool) -> None:
    def new() -> tuple[GenerationBatch, CountingSampler, list[Shift]]:
        sampler, change = CountingSampler(), [Shift()] * processed
        logits = mx.eye(8)[mx.array([[5]])]
        batch, _ = begun([0], None, logits, [Cache()], [[1, 2, 3]], [sampler], [change])
        batch.model = lambda tokens, cache: mx.eye(8)[(tokens + 1) % 8]
        return batch, sampler, change

    (plain, sampler, change), (batch, other, changed) = new(), new()
    wanted = [plain.next()[0].token for _ in range(right + 1)]
    expected = sampled_ahead(plain)
    draft = wanted[1:] if right == 3 else [*wanted[1:], (expected + 1) % 8, 0]
    assert several_steps(batch, draft) == wanted
    assert batch.prompt_cache[0].trimmed == len(draft) - right
    assert sampled_ahead(batch) == expected
    assert other.calls == sampler.calls
    assert [each.seen for each in changed] == [each.seen for each in change]
    for name in ("tokens", "_num_tokens"):
        assert getattr(batch, name) == getattr(plain, name)
    assert mx.array_equal(batch._next_logprobs[0], plain._next_logprobs[0])
    for _ in range(3):
        assert [r.token for r in batch.next()] == [r.token for r in plain.next()]
    assert [each.seen for each in changed] == [each.seen for each in change]


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

"""The parts of mlx-lm that are not its public interface, in one place.

tests/inference_service/engine/test_mlx_lm_adapter.py names the versions and checks each part, so that an upgrade which
changes one fails there. What is relied on:

GenerationBatch   its constructor; `_next_tokens`, which it has sampled for its next step when it is made; that it calls
                  a row's sampler once a step, in order; that its state is in attributes, of which `filter` and
                  `extend` change the lists in place, as our caches do; and what a step does with them, which
                  `several_steps` does for several: `_next_logprobs`, `_token_context` with its `_size`, `_num_tokens`
tokenizer_utils   the module's name `AutoTokenizer`, by which `load` makes tokenizers
load_model        its parameter `get_model_classes`, whose default finds the classes of a config
utils             `hf_repo_to_path`, a complete model in the hub's local cache, and `DEFAULT_ALLOW_PATTERNS`
models.*          the name `scaled_dot_product_attention`, through which a model's module attends
"""

import copy
import inspect
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, TypeVar

import mlx.core as mx
from mlx_lm import tokenizer_utils
from mlx_lm.generate import GenerationBatch, StopSequences
from mlx_lm.tokenizer_utils import TokenizerWrapper
from mlx_lm.utils import DEFAULT_ALLOW_PATTERNS, hf_repo_to_path, load_model
from mlx_lm.utils import load_tokenizer as _load_tokenizer
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from inference_service.engine import tiktoken_files

__all__ = [
    "ATTENTION_NAME",
    "DEFAULT_ALLOW_PATTERNS",
    "GenerationBatch",
    "begun",
    "hf_repo_to_path",
    "load_tokenizer",
    "model_classes",
    "regrouped",
    "sampled_ahead",
    "several_steps",
    "trim",
]

ATTENTION_NAME: Final = "scaled_dot_product_attention"

_NO_STOPS = StopSequences([])
_NO_LIMIT = 1 << 60
_T = TypeVar("_T")


def model_classes(config: dict[str, Any]) -> tuple[Any, Any]:
    """The classes of a model and of its arguments, by its config.json. Raises what mlx-lm raises."""
    found: tuple[Any, Any] = inspect.signature(load_model).parameters["get_model_classes"].default(config)
    return found


def load_tokenizer(directory: Path, eos_token_ids: Any) -> TokenizerWrapper:
    """mlx-lm's tokenizer over tokenizer.json as it is, which the model was trained with, parsed once.

    For some model types transformers 5 replaces that file's rules with rules of its own: to it a Qwen 2 takes digits
    one by one, though the one at hand may have learned "417" as one token. And these it builds from vocabularies that
    it reads again: with the file itself, which was parsed besides, that took twice as long for Gemma 3.
    """
    return _load_tokenizer(directory, eos_token_ids=eos_token_ids)


_OTHER_TOKENIZERS: Final = ("tokenizer.model", "vocab.json")


class _OfKnownCode(PreTrainedTokenizerFast):  # type: ignore[misc]
    """A tokenizer of `tiktoken_files`. Their templates see tools with sorted keys."""

    def apply_chat_template(self, conversation: Any, tools: Any = None, **arguments: Any) -> Any:
        return super().apply_chat_template(conversation, tools=_sorted(tools), **arguments)


def _sorted(value: Any) -> Any:
    """Sort the keys of all objects in a JSON value."""
    if isinstance(value, dict):
        return {key: _sorted(each) for key, each in sorted(value.items())}
    return [_sorted(each) for each in value] if isinstance(value, list) else value


class _AutoTokenizer:
    """Replaces transformers' for mlx-lm, in the whole process."""

    @staticmethod
    def from_pretrained(directory: Path, **arguments: Any) -> Any:
        """A tokenizer of tokenizer.json where there is one, else what transformers makes of the directory, or what is
        known here of its code, which is never run.
        """
        files = Path(directory)
        if (files / "tokenizer.json").exists():
            return PreTrainedTokenizerFast.from_pretrained(directory, **arguments)
        if (files / tiktoken_files.FILE).exists():
            # transformers would split text by a pattern of another model's.
            with TemporaryDirectory(prefix="agentmem-tokenizer-") as converted:
                tiktoken_files.convert(files, Path(converted))
                return _OfKnownCode.from_pretrained(converted, **arguments)
        if (files / "tekken.json").exists() and not any((files / name).exists() for name in _OTHER_TOKENIZERS):
            raise FileNotFoundError(
                "tokenizer.json is missing: tekken.json alone is Mistral's own format; put the tokenizer.json and the "
                "tokenizer_config.json of a conversion there"
            )
        return AutoTokenizer.from_pretrained(directory, **{**arguments, "trust_remote_code": False})


tokenizer_utils.AutoTokenizer = _AutoTokenizer


def begun(
    uids: Sequence[int],
    model: Any,
    logits: mx.array,
    caches: list[Any],
    histories: Sequence[Sequence[int]],
    samplers: Sequence[Callable[[mx.array], mx.array]],
    processors: Sequence[list[Any]],
) -> tuple[GenerationBatch, list[int]]:
    """A batch of rows whose prompts are computed, and each row's first token. Engine thread.

    `caches` are batch caches of these rows that hold `histories`, `logits` [rows, 1, vocabulary] those behind their
    last tokens. The tokens are returned at once: `next` returns them only when it has the graph of the next step, which
    took 8 of 37 ms to the first token of a next turn (H200, Llama 3.1 8B).
    """
    batch = GenerationBatch(
        model=lambda _tokens, cache: logits,  # noqa: ARG005 - mlx-lm's name; the caches have the last token already
        uids=list(uids),
        inputs=mx.array([history[-1] for history in histories]),
        prompt_cache=caches,
        # Tokens only go to what changes logits.
        tokens=[list(history[:-1]) if own else [] for history, own in zip(histories, processors, strict=True)],
        samplers=list(samplers),
        fallback_sampler=samplers[0],
        logits_processors=list(processors),
        stop_sequences=[_NO_STOPS] * len(uids),
        max_tokens=[_NO_LIMIT] * len(uids),
    )
    batch.model = model
    first: list[int] = batch._next_tokens.tolist()
    return batch, first


def sampled_ahead(row: GenerationBatch) -> int:
    """The token that a batch of one row has sampled for its next step; waits until it is computed. Engine thread."""
    [token] = row._next_tokens.tolist()
    return int(token)


def several_steps(row: GenerationBatch, draft: Sequence[int]) -> list[int]:
    """Several steps of a batch of one row as one call of the model: as many as hold what is expected, and one more.

    `draft` are the tokens expected behind the one that is sampled ahead. Returns each step's token, the one sampled
    ahead first; after that the batch is as that many steps leave it. Each token is sampled as its step would sample it,
    by the row's own sampler and logits processors behind the tokens before it, and a step counts if all before it gave
    what the draft says. Given the logits that is exact: greedy tokens are those of plain steps, one by one, and sampled
    ones have their distribution. The logits are rounded otherwise, as in a batch of several rows, since a model
    computes several tokens by other products than one: where two tokens are nearly as likely, another may be taken.

    Engine thread. The caches are batch caches that can be trimmed.
    """
    inputs = [sampled_ahead(row), *draft]
    [processors], [sampler], [context] = row.logits_processors, row.samplers, row._token_context
    logits = row.model(mx.array([inputs]), cache=row.prompt_cache)
    seen: Any = context.update_and_fetch(mx.array(inputs)) if processors else None
    for wrong in reversed(range(len(inputs))):  # How many inputs are wrong, if what is sampled here is not as expected.
        taken = len(inputs) - wrong
        behind = logits[:, taken - 1]
        for processor in processors:
            behind = processor(seen[: seen.size - wrong], behind)
        logprobs = behind - mx.logsumexp(behind, axis=-1, keepdims=True)
        chosen = sampler(logprobs)
        if not wrong or chosen.item() != inputs[taken]:
            break
    trim(row, wrong)
    if processors:
        context._size -= wrong
    row._next_tokens, row._next_logprobs = chosen, list(logprobs)
    row._num_tokens[0] += taken
    row.tokens[0].extend(inputs[:taken])
    return inputs[:taken]


def trim(batch: GenerationBatch, tokens: int) -> None:
    """Drop the last tokens of each row from the caches: of those that `several_steps` left there. Engine thread."""
    for cache in batch.prompt_cache:
        cache.trim(tokens)


def regrouped(groups: Sequence[GenerationBatch], wanted: Iterable[frozenset[int]]) -> list[GenerationBatch]:
    """Batches of the wanted uids, evaluated. A group that is already as wanted is returned itself. Engine thread.

    A row takes everything with it: KV, tokens, sampler and logits processors, and the token that its batch has sampled
    for the next step. The groups are read and never written, so that a failure changes nothing: they go on as they
    were. Takes memory for the new batches beside the old ones, until the caller releases those.
    """
    return [_group(groups, uids) for uids in wanted]


def _group(groups: Sequence[GenerationBatch], uids: frozenset[int]) -> GenerationBatch:
    sources = [group for group in groups if not uids.isdisjoint(group.uids)]
    if len(sources) == 1 and len(sources[0].uids) == len(uids):
        return sources[0]
    first, *others = (_part(group, uids) for group in sources)
    for other in others:
        first.extend(other)
    mx.eval([cache.state for cache in first.prompt_cache])
    return first


def _part(group: GenerationBatch, uids: frozenset[int]) -> GenerationBatch:
    """A batch of its own with those rows of the group that are wanted; no KV is copied where all are."""
    part = _with_its_own_lists(group)
    part.prompt_cache = [_with_its_own_lists(cache) for cache in group.prompt_cache]
    keep = [row for row, uid in enumerate(group.uids) if uid in uids]
    if len(keep) < len(group.uids):
        part.filter(keep)
    return part


def _with_its_own_lists(original: _T) -> _T:
    """A shallow copy with copies of its lists, which batches and caches change in place."""
    copied = copy.copy(original)
    attributes: dict[str, Any] = vars(copied)
    for name, value in attributes.items():
        if isinstance(value, list):
            attributes[name] = list(value)
    return copied

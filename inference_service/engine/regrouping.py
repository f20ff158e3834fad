"""Rows move between mlx-lm's GenerationBatches. Engine thread.

A row takes everything with it: its KV, its tokens, its sampler and logits processors, and the token that its batch has
already sampled for the next step. The batches that rows come from are read and never written, so that whatever fails
here has changed nothing: they go on as they were.
"""

import copy
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

import mlx.core as mx
from mlx_lm.generate import GenerationBatch

_T = TypeVar("_T")


def regrouped(groups: Sequence[GenerationBatch], wanted: Iterable[frozenset[int]]) -> list[GenerationBatch]:
    """Batches of the wanted uids, evaluated. A group that is already as wanted is returned itself.

    Takes memory for the new batches beside the old ones, until the caller lets go of those.
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
    """A copy that shares what is in the lists but not the lists, which batches and caches change in place."""
    copied = copy.copy(original)
    attributes: dict[str, Any] = vars(copied)
    for name, value in attributes.items():
        if isinstance(value, list):
            attributes[name] = list(value)
    return copied

"""Rows that move between groups while they decode."""

import threading
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from inference_service.engine.caches.full import BatchQuantizedKVCache
from mlx_lm.generate import GenerationBatch

from agentmem.errors import Cancelled
from inference_service.domain import Sampling, TokenEvent
from inference_service.engine import batching, mlx_lm_adapter
from inference_service.engine.generation import Decoding, TurnJob
from inference_service.engine.mlx_lm_adapter import regrouped
from inference_service.models.loaded import LoadedModel
from tests.oracle import Oracle

pytestmark = pytest.mark.sampled(2)

TEXT = "The boat by the sea, ü€😀 nobody knows. "
REPEATS = (1, 6, 1, 18, 1, 16)
TOKENS = (34, 30, 22, 12, 9, 10)
PENALTIES = Sampling(
    temperature=1.0, top_p=0.95, seed=7, frequency_penalty=0.5, repetition_penalty=1.1, ignore_eos=True
)


@pytest.fixture
def light(model: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> LoadedModel:
    """The model, as if its weights were so small that 150 tokens of padding cost more."""
    monkeypatch.setattr(model.engine, "weight_bytes", 150 * model.geometry.bytes_per_token)
    return model


Turn = tuple[TurnJob, list[TokenEvent]]


def begin(model: LoadedModel, number: int, sampling: Sampling) -> Turn:
    prompt = model.tokenizer.encode(f"{number} " + TEXT * REPEATS[number], parse_special=False)
    events: list[TokenEvent] = []
    decoding = Decoding(TOKENS[number], sampling=sampling, top_logprobs=0)
    job = TurnJob(prompt, model.new_caches, decoding, events.append, threading.Event())
    model.engine.add(job)
    return job, events


def run(model: LoadedModel, sampling: Sampling) -> tuple[list[Turn], list[list[dict[int, int]]]]:
    """Six turns that come one after the other; and the groups after each tick, as the tokens of each row."""
    turns: list[Turn] = []
    groups = []
    for step in range(10_000):
        if step % 4 == 0 and len(turns) < len(REPEATS):
            turns.append(begin(model, len(turns), sampling))
        more = model.engine.step()
        running = model.engine._running
        groups.append([{uid: running[uid].tokens for uid in group.uids} for group in model.engine._groups])
        if not more and len(turns) == len(REPEATS):
            return turns, groups
    raise AssertionError("the engine does not come to an end")


def difference(oracle: Oracle, turns: Sequence[Turn]) -> float:
    worst = 0.0
    for job, events in turns:
        sequence = job.sequence
        wanted = oracle.logprobs_of([*sequence, *(e.token_id for e in events)], len(sequence))
        worst = max(worst, float(np.abs(wanted - np.array([e.logprob for e in events])).max()))
    return worst


@pytest.mark.slow
def test_every_row_is_right_through_regrouping(light: LoadedModel, oracle: Oracle) -> None:
    turns, groups = run(light, Sampling(ignore_eos=True))
    assert difference(oracle, turns) < 1e-3
    assert len({event.token_id for _, events in turns for event in events}) > 15
    for job, events in turns:
        caches, generated = job.future.result(0)
        assert len(events) == len(generated.token_ids) == job.decoding.max_tokens  # type: ignore[union-attr]
        assert {cache.offset for cache in caches} == {job.tokens}
        assert not job.alone
    for each in groups:
        bounds = sorted((min(group.values()), max(group.values())) for group in each)
        assert all(longest <= shortest for (_, longest), (shortest, _) in pairwise(bounds)), "groups are by length"
    ticks = list(pairwise(groups))
    assert any(meet(before, group) for before, after in ticks for group in after), "groups came together"
    assert any(meet(after, group) for before, after in ticks for group in before), "groups were split"


def meet(groups: list[dict[int, int]], other: dict[int, int]) -> bool:
    """Whether rows of another tick's group are here in several."""
    return len([group for group in groups if group.keys() & other.keys()]) > 1


@pytest.fixture(scope="module")
def sampled(model: LoadedModel) -> list[list[int]]:
    """What the turns sample if they are never moved, because weights are heavy."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(model.engine, "weight_bytes", 1 << 60)
        turns, groups = run(model, PENALTIES)
    assert {len(each) for each in groups} <= {0, 1}
    return [job.result.token_ids for job, _ in turns]


@pytest.mark.slow
def test_seeds_and_penalties_hold_through_regrouping(light: LoadedModel, sampled: list[list[int]]) -> None:
    turns, _ = run(light, PENALTIES)
    assert [job.result.token_ids for job, _ in turns] == sampled


@pytest.mark.slow("gemma3-filter", "gemma3-regrouped", "llama-eval")
@pytest.mark.parametrize("call", ["regrouped", "filter", "extend", "eval"])
def test_a_failure_while_rows_are_moved_loses_nobody(
    light: LoadedModel,
    oracle: Oracle,
    sampled: list[list[int]],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    call: str,
) -> None:
    """The rows go on as they were, not even computed again."""
    failures = [RuntimeError("no room") for _ in range(2)]
    moving = [False]

    def failing(original: Callable[..., Any]) -> Callable[..., Any]:
        def called(*arguments: Any) -> Any:
            result = original(*arguments)
            if moving[0] and failures:
                raise failures.pop()
            return result

        return called

    def watched(*arguments: Any) -> Any:
        moving[0] = True
        try:
            return regrouped(*arguments)
        finally:
            moving[0] = False

    monkeypatch.setattr(batching, "regrouped", watched)
    match call:
        case "regrouped":
            monkeypatch.setattr(mlx_lm_adapter, "_group", failing(mlx_lm_adapter._group))
        case "eval":
            monkeypatch.setattr(mx, "eval", failing(mx.eval))
        case _:
            monkeypatch.setattr(GenerationBatch, call, failing(getattr(GenerationBatch, call)))
    turns, _ = run(light, PENALTIES)
    assert not failures, "the fault was met"
    assert caplog.text.count("could not be regrouped") == 2
    monkeypatch.undo()
    assert not any(job.alone for job, _ in turns)
    assert [len(job.future.result(0)[1].token_ids) for job, _ in turns] == list(TOKENS)
    assert light.engine.running == 0
    assert [job.result.token_ids for job, _ in turns] == sampled
    assert difference_of_kv(light, oracle, turns) < 1e-3


def difference_of_kv(model: LoadedModel, oracle: Oracle, turns: Sequence[Turn]) -> float:
    """What goes on from the rows' caches, against the oracle: penalties change what the sampled tokens' say."""
    worst = 0.0
    more = model.tokenizer.encode(" and more 😀 text", parse_special=False)
    for job, _ in turns:
        caches, generated = job.future.result(0)
        logits = model.engine.model(mx.array([more]), cache=caches)[0]
        found = np.array(logits - mx.logsumexp(logits, axis=-1, keepdims=True))
        sequence = [*job.sequence, *generated.token_ids]
        worst = max(worst, float(np.abs(found - oracle.logprobs([*sequence, *more])[len(sequence) :]).max()))
    return worst


def test_a_step_that_fails_harms_only_its_own_group(
    light: LoadedModel, oracle: Oracle, monkeypatch: pytest.MonkeyPatch
) -> None:
    original, failures = GenerationBatch.next, [RuntimeError("no room")]

    def failing(self: GenerationBatch) -> Any:
        if failures and len(light.engine._groups) > 1 and len(self) > 1:
            raise failures.pop()
        return original(self)

    monkeypatch.setattr(GenerationBatch, "next", failing)
    turns, _ = run(light, Sampling(ignore_eos=True))
    assert not failures
    assert 2 <= sum(job.alone for job, _ in turns) < len(turns)
    assert difference(oracle, turns) < 1e-3


def test_a_row_that_is_cancelled_leaves_its_group(light: LoadedModel, oracle: Oracle) -> None:
    turns = [begin(light, number, Sampling(ignore_eos=True)) for number in (0, 3, 2)]
    while any(len(events) < 3 for _, events in turns):
        light.engine.step()
    assert len(light.engine._groups) == 2
    turns[1][0].cancelled.set()
    light.engine.step()
    assert [len(group) for group in light.engine._groups] == [2]
    while light.engine.step():
        pass
    with pytest.raises(Cancelled):
        turns[1][0].future.result(0)
    assert difference(oracle, [turns[0], turns[2]]) < 1e-3


def swapped_rows(part: GenerationBatch) -> None:
    for cache in part.prompt_cache:
        rows = list(range(len(cache.padding)))
        cache.buffers = cache.buffers.rows(rows[::-1])


def wrong_padding(part: GenerationBatch) -> None:
    for cache in part.prompt_cache:
        if isinstance(cache, BatchQuantizedKVCache):
            cache.padding = [padding + 8 for padding in cache.padding]


@pytest.mark.slow("llama-wrong_padding", "gemma3-swapped_rows", "gemma3-wrong_padding")
@pytest.mark.parametrize("fault", [swapped_rows, wrong_padding])
def test_injected_faults_are_found(
    light: LoadedModel, oracle: Oracle, monkeypatch: pytest.MonkeyPatch, fault: Callable[[GenerationBatch], None]
) -> None:
    original = mlx_lm_adapter._part

    def part(group: GenerationBatch, uids: frozenset[int]) -> GenerationBatch:
        moved = original(group, uids)
        if len(moved) > 1:
            fault(moved)
        return moved

    monkeypatch.setattr(mlx_lm_adapter, "_part", part)
    turns, _ = run(light, Sampling(ignore_eos=True))
    assert difference(oracle, turns) > 1e-2


@pytest.mark.slow
def test_the_groups_that_rows_come_from_are_not_touched(light: LoadedModel) -> None:
    for number in (0, 2, 3, 5):
        begin(light, number, Sampling(ignore_eos=True))
    while light.engine.running < 4:
        light.engine.step()
    short, long = sorted(light.engine._groups, key=lambda group: light.engine._running[group.uids[0]].tokens)

    def state() -> list[Any]:
        return [
            [vars(cache)["padding"], [np.array(array).tolist() for array in cache.state], int(cache.offset.sum())]
            for group in (short, long)
            for cache in group.prompt_cache
        ] + [list(group.uids) for group in (short, long)]

    before = state()
    kept, mixed, rest = regrouped(
        (short, long),
        [frozenset(short.uids), frozenset([short.uids[1], long.uids[0]]), frozenset(short.uids + long.uids)],
    )
    assert kept is short
    assert state() == before
    assert sorted(mixed.uids) == sorted([short.uids[1], long.uids[0]])
    assert len(rest.next()) == 4
    assert state() == before
    while light.engine.step():
        pass

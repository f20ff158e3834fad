"""Short prompts that ride along in the pass of who decodes: which do, and each is right."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from benchmarks.loading import load
from inference_service.engine import batching, prompts
from inference_service.engine.paged.passes import Pass
from inference_service.engine.prompt_blocks import PromptBlocks
from inference_service.models.fingerprint import ContentHashes
from inference_service.models.loaded import LoadedModel
from tests.inference_service.directories import written_by
from tests.inference_service.engine.batch_turns import (
    Turn,
    begin,
    differing,
    packed,
    prompt_of,
    right,
    run,
    until_told,
)
from tests.inference_service.engine.riders import LENGTHS, RIDING, some_prompts
from tests.oracle import Oracle
from tests.tiny_hybrids import write_qwen3_next
from tests.tiny_own_attention import write_stablelm
from tests.tiny_states import write_mamba2

pytestmark = pytest.mark.sampled(3)


directory = written_by(RIDING, ["llama", "gemma3", "latents"])


def alone(model: LoadedModel, turns: list[Turn], tokens: int = 12) -> Iterator[Turn]:
    for turn in turns:
        found = begin(model, turn.job.sequence, tokens)
        run(model)
        yield found


@pytest.mark.usefixtures("rides")
@pytest.mark.parametrize("company", [0, 2])
def test_prompts_that_wait_together_ride_together(
    model: LoadedModel, oracle: Oracle, computed: list[list[int]], company: int
) -> None:
    others = [begin(model, prompt_of(model, 7 + n, n + 1), 30) for n in range(company)]
    until_told(model, others, 3)
    computed.clear()
    turns = [begin(model, prompt) for prompt in some_prompts(model, *LENGTHS)]
    model.engine.step()
    assert computed == [[1] * company + list(LENGTHS)], "the shortest first, all in one pass"
    run(model)
    for turn, other, length in zip(turns, alone(model, turns), LENGTHS, strict=True):
        assert right(oracle, turn) and turn.whole and not turn.job.alone
        assert turn.said == other.said and differing(packed(model, turn.kv), packed(model, other.kv)) == 0
        [chunk] = turn.job.chunks
        assert (chunk.position, chunk.tokens, chunk.alone) == (0, length, False)
        assert turn.generated.prefill_seconds > 0 and len(turn.events) == 12
    assert all(right(oracle, other) and other.whole for other in others)


def test_on_a_cpu_few_tokens_ride(model: LoadedModel, oracle: Oracle, computed: list[list[int]]) -> None:
    """As many as it computes in some seconds, and 64 where that is not known. Of a longer prompt the last one rides."""
    model.engine._tokens_per_second = 0.0
    turns = [begin(model, prompt) for prompt in some_prompts(model, 65, 10, 16, 64, 5)]
    model.engine.step()
    assert computed == [[5, 10, 16]], "64 rows at most"
    run(model)
    assert computed[1] == [1, 1, 1, 64], "the last token of 65 has no row left"
    assert {tokens for each in computed[2:] for tokens in each} == {1}
    assert all(right(oracle, turn) and turn.whole for turn in turns)
    assert [[chunk.tokens for chunk in turn.job.chunks] for turn in turns] == [[64, 1], [10], [16], [64], [5]]


def test_a_slow_cpu_has_few_rows_in_a_pass(model: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream waits for a pass; where there is none, others that come do."""
    for tokens_per_second, rows, alone in ((0, 64, 64), (9, 64, 64), (100, 200, 400), (150, 300, 512), (999, 512, 512)):
        monkeypatch.setattr(model.engine, "_tokens_per_second", tokens_per_second)
        assert model.engine._rows == alone
        with monkeypatch.context() as patch:
            patch.setattr(model.engine, "others_decode", lambda: True)
            assert model.engine._rows == rows


@pytest.mark.usefixtures("rides")
def test_whom_a_pass_has_no_rows_for_rides_in_the_next(
    model: LoadedModel, oracle: Oracle, computed: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prompts, "_ROWS", 40)
    monkeypatch.setattr(prompts, "_ROWS_ON_CPU", 40)
    turns = [begin(model, prompt) for prompt in some_prompts(model, 15, 14, 16, 30, 13, 12)]
    for _ in range(4):
        model.engine.step()
    assert [sum(each) for each in computed[:4]] == [39, 34, 35, 6]
    run(model)
    assert all(right(oracle, turn) and turn.whole and len(turn.job.chunks) == 1 for turn in turns)


@pytest.mark.usefixtures("rides")
def test_next_turns_ride_after_what_they_remember(
    model: LoadedModel, oracle: Oracle, computed: list[list[int]]
) -> None:
    texts = some_prompts(model, 300, 310, 250, 256)
    pasts = [begin(model, text, None) for text in texts]
    run(model)
    before = [packed(model, past.kv) for past in pasts]
    new = (40, 30, 37, 33)
    turns = [
        begin(model, [*text, *prompt_of(model, 7 + n, 5)[:length]], warm=past.kv)
        for n, (text, past, length) in enumerate(zip(texts, pasts, new, strict=True))
    ]
    model.engine.step()
    assert computed == [sorted(new)]
    run(model)
    for turn, text, length in zip(turns, texts, new, strict=True):
        assert right(oracle, turn) and turn.whole
        assert turn.job.chunks[0][2:4] == (len(text), length)
    assert all(differing(packed(model, past.kv), kept) == 0 for past, kept in zip(pasts, before, strict=True))


def test_a_long_prompt_is_not_passed_over_by_short_ones_that_keep_coming(
    model: LoadedModel, oracle: Oracle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prompts, "chunk_tokens", lambda *_: 64)
    long, middle = begin(model, prompt_of(model, 0, 20), 3), begin(model, prompt_of(model, 5, 9)[:20], 3)
    coming: list[list[Turn]] = []
    for _ in range(60):
        if long.job.future.done() and middle.job.future.done():
            break
        coming.append([begin(model, prompt, 2) for prompt in some_prompts(model, 14, 15)])
        model.engine.step()
        if len(coming) > 4:
            soon = coming.pop(0)
            assert all(turn.job.future.done() and turn.whole and right(oracle, turn) for turn in soon), (
                "nor they for it"
            )
    assert long.job.future.done() and middle.job.future.done()
    run(model)
    assert all(right(oracle, turn) and turn.whole for turn in (long, middle))


@pytest.mark.usefixtures("rides")
@pytest.mark.parametrize(("cpu", "passes"), [(True, 1), (False, 2)])
def test_a_first_token_waits_for_no_other_pass_on_a_cpu(
    model: LoadedModel, monkeypatch: pytest.MonkeyPatch, computed: list[list[int]], cpu: bool, passes: int
) -> None:
    """A CPU computes a pass while launching it. A GPU gets its next pass before anything is taken."""
    monkeypatch.setattr(batching, "on_cpu", lambda: cpu)
    before: list[int] = []
    turn = begin(model, prompt_of(model, 3, 1), 5)
    turn.job.emit = lambda event: before.append(len(computed))
    run(model)
    assert before[0] == passes
    assert len(computed) == 6, "the last one computes KV alone"


def test_a_prompt_with_a_checkpoint_inside_is_computed_in_chunks(model: LoadedModel, oracle: Oracle) -> None:
    turn = begin(model, prompt_of(model, 1, 5)[:60], checkpoints=(30,))
    run(model)
    stops = [] if model.geometry.resumes_anywhere else [30]
    assert list(turn.job.captured) == stops and right(oracle, turn) and turn.whole
    assert [chunk.tokens for chunk in turn.job.chunks] == ([30, 30] if stops else [59, 1])


@pytest.mark.usefixtures("rides")
def test_prompts_that_begin_with_the_same_block_do_not_ride_together(
    model: LoadedModel, computed: list[list[int]]
) -> None:
    monkey = list(range(1, 31)) * 9
    turns = [begin(model, monkey[:260], 1) for _ in range(2)]
    looked: list[bool] = []
    for turn in turns:

        def look(job: Any = turn.job) -> None:
            looked.append(job.started)
            job.found(None, 0)

        turn.job.blocks = PromptBlocks((b"the block",), look=look)
    run(model)
    assert looked == [False]
    assert all(turn.whole for turn in turns)
    assert max(map(len, computed)) == 1


@pytest.mark.usefixtures("rides")
@pytest.mark.parametrize(
    "write", [write_mamba2, write_stablelm, pytest.param(write_qwen3_next, marks=pytest.mark.slow)]
)
def test_one_token_rides_where_more_cost_too_much(write: Callable[[Path], Path], tmp_path: Path) -> None:
    """Recurrent layers take the tokens of a sequence in order, and for layers that compute attention by themselves
    arrays are made for each row. The tokens of several sequences are rows. A prompt of one token, whose state begins
    with it, harms nobody.
    """
    directory = write(tmp_path / "model")
    model = load("tiny", str(directory), hashes=ContentHashes(tmp_path / "hashes.json"))
    pieces: set[tuple[int, ...]] = set()
    compute = model.arenas.compute

    def noted(network: Any, of: Pass, tokens: mx.array) -> Any:
        pieces.add(tuple(piece.tokens for piece in of.pieces))
        return compute(network, of, tokens)

    model.arenas.compute = noted  # type: ignore[method-assign]
    turns = [begin(model, prompt) for prompt in some_prompts(model, *LENGTHS)]
    until_told(model, turns, 2)
    turns.append(begin(model, [5]))
    run(model)
    assert {tokens for each in pieces for tokens in each} == {1} and max(map(len, pieces)) > 3
    oracle = Oracle(directory)
    for turn, other in zip(turns, alone(model, turns), strict=True):
        assert right(oracle, turn) and turn.whole and not turn.job.alone
        assert differing(packed(model, turn.kv), packed(model, other.kv)) == 0

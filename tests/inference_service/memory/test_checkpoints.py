"""Checkpoints that are looked for, and the one that is taken, against real tables and blocks."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentmem.kv.blockfile import chain_hashes
from agentmem.kv.ledger import Ledger, TurnPlace
from agentmem.v1.cache_store_pb2 import StoredFile
from inference_service.engine.paged.sequence import SLACK, BlockTable, WindowTable
from inference_service.engine.paged.sequence import Sequence as KVSequence
from inference_service.memory.checkpoints import (
    CheckpointCandidate,
    capture_positions,
    captures_by_worth,
    checkpoint_candidates,
    checkpoint_headers,
    choose_checkpoint,
    likely_positions,
    resume_position,
    stored_tokens,
)
from inference_service.memory.restore import headers

FINGERPRINT, NAMESPACE = "f" * 64, "ns"


@dataclass
class Window:
    """A sequence of one sliding layer, and the position of the token in each place of its blocks."""

    sequence: KVSequence
    held: dict[tuple[int, int], int] = field(default_factory=dict)

    @classmethod
    def of(cls, window: int) -> "Window":
        tokens = min(256, window)
        spare = list(range(-(-(window + SLACK) // tokens) + 2 + -(-300 // tokens)))
        return cls(KVSequence(BlockTable(256), window=WindowTable(tokens, window=window, spare=spare)))

    @property
    def table(self) -> WindowTable:
        assert self.sequence.window is not None
        return self.sequence.window

    @property
    def kept(self) -> int:
        return self.sequence.length - self.table.kept_from(self.sequence.length)

    def _place(self, position: int) -> tuple[int, int]:
        return self.table.at(position), (position - self.table.first) % self.table.tokens

    def write(self, n: int) -> None:
        start = self.sequence.length
        self.table.slide(start + n)
        self.sequence.length += n
        for position in range(max(start, self.table.first), start + n):
            self.held[self._place(position)] = position

    def last(self, tokens: int) -> "Window":
        """As it comes back from a file of its last tokens."""
        restored, length = Window.of(self.table.window), self.sequence.length
        table = restored.table
        table.first = (length - tokens) // table.tokens * table.tokens
        table.blocks = [table.spare.pop() for _ in range(-(-(length - table.first) // table.tokens))]
        restored.sequence.length = length
        for position in range(length - tokens, length):
            restored.held[restored._place(position)] = self.held[self._place(position)]
        return restored

    def can_trim(self, tokens: int) -> bool:
        """Return whether the whole window before the next token is there with so many tokens less."""
        end = self.sequence.length - tokens
        before = range(max(0, end - self.table.window), end)
        return all(position >= self.table.first and self._place(position) in self.held for position in before)

    def seen_at_the_next_token(self) -> list[int]:
        """The positions of what the next query attends to, itself included."""
        self.write(1)
        end = self.sequence.length
        return [self.held[self._place(position)] for position in range(max(0, end - self.table.window), end)]


def written(window: int, steps: Sequence[int]) -> Window:
    made = Window.of(window)
    for n in steps:
        made.write(n)
    return made


@given(data=st.data())
def test_resuming_is_what_a_real_cache_can_do(data: st.DataObject) -> None:
    window = data.draw(st.integers(1, 40))
    cache = written(window, data.draw(st.lists(st.integers(1, 300), min_size=1, max_size=3)))
    position = cache.sequence.length
    stored = data.draw(st.integers(min(position, window), cache.kept))
    edge = position - stored + window
    limit = max(0, data.draw(st.one_of(st.integers(0, position + 5), st.integers(edge - 2, edge + 2))))
    restored = cache.last(stored)
    resume = resume_position(position, stored, window, limit)
    wanted = min(position, limit)
    assert resume == (wanted if restored.can_trim(position - wanted) else 0)
    if resume:
        restored.sequence.trim(resume)
        assert not restored.sequence.lost
        assert restored.seen_at_the_next_token() == list(range(max(0, resume - window + 1), resume + 1))


def test_a_state_is_good_at_its_position_alone() -> None:
    assert resume_position(1000, 1000, 0, 1000, exact=True) == 1000
    assert resume_position(1000, 1000, 0, 999) == 999, "it could be trimmed"
    assert resume_position(1000, 1000, 0, 999, exact=True) == 0
    assert resume_position(1000, 300, 64, 5000, exact=True) == 1000, "beside a window"
    assert resume_position(1000, 300, 64, 999, exact=True) == 0


@pytest.mark.parametrize("nonsense", [(1000, 63, 64, 1000), (10, 11, 64, 10), (1000, 0, 0, 1000)])
def test_a_checkpoint_of_nonsense_resumes_nowhere(nonsense: tuple[int, int, int, int]) -> None:
    assert resume_position(*nonsense) == 0


@dataclass(frozen=True)
class Case:
    """A ledger and a sequence that shares its first `keep` tokens. Token 0 begins messages, token 1 is an assistant."""

    ledger: Ledger
    keep: int
    sequence: tuple[int, ...]
    checkpoints: tuple[int, ...]

    @property
    def candidates(self) -> tuple[CheckpointCandidate, ...]:
        return checkpoint_candidates(FINGERPRINT, NAMESPACE, self.ledger, self.keep, self.sequence, self.checkpoints)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    sizes = st.one_of(st.integers(0, 700), st.sampled_from([1, 255, 256, 257, 511, 512, 513]))
    rng = random.Random(draw(st.integers(0, 2**32)))
    tokens = tuple(rng.randrange(6) for _ in range(draw(sizes)))
    ends = sorted(draw(st.sets(st.integers(1, len(tokens)), max_size=12))) if tokens else []
    ledger = Ledger(tokens, b"x" * len(tokens), tuple(range(1, len(tokens) + 1)), "h")
    ledger = replace(ledger, turns=tuple(TurnPlace(end, 0) for end in ends))
    keep = min(draw(sizes), len(tokens))
    sequence = (*tokens[:keep], *(rng.randrange(6) for _ in range(max(1, draw(sizes)))))
    checkpoints = {rng.randrange(len(sequence) + 1) for _ in range(2)} - {0, len(sequence)}
    return Case(ledger, keep, sequence, tuple(sorted(checkpoints)))


@given(case=cases())
def test_names_are_those_of_what_the_sequence_shares(case: Case) -> None:
    names = [candidate.name for candidate in case.candidates]
    assert len(set(names)) == len(names)
    for position, name, parent, usable in case.candidates:
        theirs = usable < position
        held = (tuple(case.ledger.token_ids.tolist()) if theirs else case.sequence)[:position]
        assert len(held) == position
        hashes = [b"", *chain_hashes(FINGERPRINT, NAMESPACE, held)]
        assert (parent, name) == (hashes[-2], hashes[-1])
        assert held[:usable] == case.sequence[:usable]
        assert 0 < usable < len(case.sequence)
        assert usable == (case.keep if theirs else position)


@given(case=cases())
def test_turns_and_checkpoints_are_candidates(case: Case) -> None:
    shared = {candidate.position for candidate in case.candidates if candidate.usable_tokens == candidate.position}
    trimmed = {candidate.position for candidate in case.candidates if candidate.usable_tokens < candidate.position}
    assert set(case.checkpoints) <= shared
    ends = [turn.end_token for turn in case.ledger.turns]
    kept = [end for end in ends if 0 < end <= case.keep]
    assert {*kept[:1], *kept[-8:]} <= shared
    if case.keep:
        assert set([end for end in ends if end > case.keep][:8]) <= trimmed
    assert len(case.candidates) <= 2 + 4 * 9 + 2 * 8


@given(case=cases(), data=st.data())
def test_the_choice_is_the_one_that_resumes_furthest(case: Case, data: st.DataObject) -> None:
    window = data.draw(st.sampled_from([1, 7, 64, 200]))
    block_tokens = data.draw(st.integers(0, len(case.sequence)))
    kept = dict[bytes, int]()
    for candidate in data.draw(st.lists(st.sampled_from(case.candidates), max_size=4)) if case.candidates else []:
        least = min(candidate.position, window)
        kept[candidate.name] = data.draw(st.integers(least, min(candidate.position, window + SLACK)))
    resumes = {
        candidate: resume_position(
            candidate.position, kept[candidate.name], window, min(candidate.usable_tokens, block_tokens)
        )
        for candidate in case.candidates
        if candidate.name in kept
    }
    chosen = choose_checkpoint(case.candidates, kept, window, block_tokens)
    if chosen is None:
        assert not any(resumes.values())
    else:
        assert resumes[chosen[0]] == chosen[1] == max(resumes.values()) <= min(block_tokens, len(case.sequence) - 1)


# What agents do.

SYSTEM = (0, 9, *range(100, 400))
CUE = (0, 1, 8)


def question(start: int) -> tuple[int, ...]:
    return (0, 2, *range(start, start + 20))


def agent(*parts: tuple[tuple[int, ...], tuple[int, ...]]) -> Ledger:
    """Return the ledger after some prompts and answers."""
    ledger = Ledger()
    for prompt, answer in parts:
        added = (*prompt, *answer)
        ledger = ledger.followed_by(added, [b"x"] * len(added), "h", len(answer))
    return ledger


def positions(candidates: Sequence[CheckpointCandidate]) -> dict[int, int]:
    return {candidate.position: candidate.usable_tokens for candidate in candidates}


def test_an_agent_that_goes_on_looks_where_its_turns_ended() -> None:
    ledger = agent(((*SYSTEM, *question(500), *CUE), (70, 71)), ((*question(600), *CUE), (72, 73)))
    sequence = (*ledger.token_ids.tolist(), *question(700), *CUE)
    generation_prompt = len(sequence) - len(CUE)
    found = positions(
        checkpoint_candidates(FINGERPRINT, NAMESPACE, ledger, len(ledger), sequence, (302, generation_prompt))
    )
    first = len(SYSTEM) + 22
    turns = {first, first + 5, first + 27, first + 32}
    raw = {first + 2, first + 29}
    assert set(found) == {302, *turns, *raw, generation_prompt}, "before the last token of a prompt, if it was raw"
    assert all(position == usable for position, usable in found.items())


def test_an_answer_that_history_spells_differently_is_left_before_its_generation_prompt() -> None:
    before = (*SYSTEM, *question(500))
    ledger = agent(((*before, *CUE), tuple(range(900, 980))))
    sequence = (*before, *CUE[:2], 7, 7, *question(600), *CUE)
    keep = len(before) + 2
    found = checkpoint_candidates(FINGERPRINT, NAMESPACE, ledger, keep, sequence, (302, len(sequence) - 3))
    assert positions(found)[len(before)] == len(before)
    assert positions(found)[len(ledger)] == keep, "the end of the turn, to be trimmed"
    stored = {c.name: c.position for c in found if c.position in (len(before), len(ledger))}
    window = 64
    assert choose_checkpoint(found, stored, window, 10_000) == (found[-1], keep)
    small = {name: min(tokens, window) for name, tokens in stored.items()}
    chosen = choose_checkpoint(found, small, window, 10_000)
    assert chosen is not None
    assert chosen[0].position == chosen[1] == len(before)


def test_a_new_agent_finds_the_system_prompt_and_what_others_said() -> None:
    """Also a whole chat that another agent had: there its generation prompts are all that is known."""
    sequence = (*SYSTEM, *question(500), *CUE[:2], 70, *question(600), *CUE)
    checkpoints = (len(SYSTEM) + 2, len(sequence) - len(CUE))
    found = checkpoint_candidates(FINGERPRINT, NAMESPACE, Ledger(), 0, sequence, checkpoints)
    assert set(positions(found)) == {*checkpoints, len(SYSTEM) + 22}
    other = agent(((*SYSTEM, *question(500), *CUE), (70,)))
    (saved,) = checkpoint_headers(FINGERPRINT, NAMESPACE, other.token_ids, {len(SYSTEM) + 22: 300})
    assert choose_checkpoint(found, {saved.chain_hash: 300}, 64, 10_000) is not None


def test_what_follows_the_last_checkpoint_is_no_cue_if_it_is_long() -> None:
    sequence = (*CUE, *range(10, 80), *CUE, *range(100, 200))
    assert positions(checkpoint_candidates(FINGERPRINT, NAMESPACE, Ledger(), 0, sequence, (73,))) == {73: 73}
    assert len(checkpoint_candidates(FINGERPRINT, NAMESPACE, Ledger(), 0, sequence[:80], (73,))) == 1
    twice = (*CUE, *range(10, 80), *CUE, 5, *CUE)
    assert set(positions(checkpoint_candidates(FINGERPRINT, NAMESPACE, Ledger(), 0, twice, (77,)))) == {73, 77}


def test_the_same_prompt_again_trims_the_turn() -> None:
    ledger = agent(((1, 2, 3), ()))
    before, candidate = checkpoint_candidates(FINGERPRINT, NAMESPACE, ledger, 2, ledger.token_ids.tolist(), ())
    assert (candidate.position, candidate.usable_tokens) == (3, 2)
    assert choose_checkpoint([candidate], {candidate.name: 3}, 64, 100) == (candidate, 2)
    assert choose_checkpoint([candidate], {candidate.name: 3}, 64, 100, exact=True) is None
    again = checkpoint_candidates(FINGERPRINT, NAMESPACE, ledger, 2, ledger.token_ids.tolist(), (), exact=True)
    assert again == (before,), "a state cannot be trimmed"
    assert before.position == 2, "where a raw prompt leaves one"


# Headers and rows.


@given(size=st.integers(1, 800), data=st.data())
def test_a_checkpoint_is_named_like_a_block_that_ends_there(size: int, data: st.DataObject) -> None:
    tokens = tuple(range(size))
    windows = data.draw(st.dictionaries(st.integers(1, size), st.integers(1, 300), min_size=1, max_size=4))
    for header, (position, stored) in zip(
        checkpoint_headers(FINGERPRINT, NAMESPACE, tokens, windows), sorted(windows.items()), strict=True
    ):
        *_, block = headers(FINGERPRINT, NAMESPACE, tokens[:position])
        assert header == replace(block, first_token=position - stored, token_count=stored, window=True)


@pytest.mark.parametrize(("first", "count", "good"), [(700, 300, True), (700, 299, False), (0, 300, False)])
def test_a_row_of_another_position_is_no_checkpoint(first: int, count: int, good: bool) -> None:
    candidate = CheckpointCandidate(1000, b"name", b"", 1000)
    row = StoredFile(chain_hash=b"name", first_token=first, token_count=count)
    assert stored_tokens([candidate], {b"name": row, b"other": row}) == ({b"name": 300} if good else {})


def test_where_checkpoints_of_a_prompt_are_kept() -> None:
    assert capture_positions((300, 700), 710) == (256, 300, 700)
    assert capture_positions((100,), 110) == (100,)
    assert capture_positions((), 600) == (512, 599), "the last token is always computed again"
    assert capture_positions((), 1) == ()


def test_which_captures_go_first_where_there_is_memory_for_few() -> None:
    assert captures_by_worth((300, 9000), 9010, 2048) == (9000, 300, 256, 8192, 4096), "the next turn's own comes first"
    assert captures_by_worth((), 7000, 2048) == (6999, 6912, 4096, 2048, 6144), "then those furthest apart"
    assert captures_by_worth((2048,), 3000, 2048) == (2048,), "each once"
    assert captures_by_worth((300,), 7000, 0) == (), "the model resumes anywhere"


def test_without_a_prompt_the_ledger_says_where_checkpoints_are_likely() -> None:
    ids = list(range(1000))
    turns = [TurnPlace(end, 20) for end in (310, *range(400, 1000, 50), 990)]
    ledger = replace(Ledger().followed_by(ids, [b"x"] * 1000, "t"), turns=tuple(turns), opening_bytes=130)
    found = likely_positions(ledger)
    assert {130, 256, 512, 768, 1000} | {turn.end_token for turn in turns} <= found, "opening, blocks, turns"
    for answer in (290, 990 - 20, 650 - 20):
        assert {answer, answer - 1, answer - 64} <= found, "however long its cue is"
    assert min(found) > 0 and max(found) == 1000
    assert likely_positions(Ledger()) == set()

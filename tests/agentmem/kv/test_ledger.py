import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from agentmem.kv.ledger import Ledger, TurnPlace, common_length

tokens = st.lists(st.tuples(st.integers(0, 1000), st.binary(max_size=4)), max_size=12)


def ledger_of(pairs: list[tuple[int, bytes]], tokenizer_hash: str = "h") -> Ledger:
    return Ledger().followed_by([i for i, _ in pairs], [piece for _, piece in pairs], tokenizer_hash)


def check(ledger: Ledger, pairs: list[tuple[int, bytes]]) -> None:
    assert len(ledger) == len(pairs)
    assert ledger.token_ids.tolist() == [i for i, _ in pairs]
    assert ledger.token_ids.dtype == ledger.offsets.dtype == np.uint32
    assert ledger.text == b"".join(piece for _, piece in pairs)
    starts = (0, *ledger.offsets)
    assert [ledger.text_end(n) for n in range(len(ledger) + 1)] == list(starts)
    assert [ledger.text[a:b] for a, b in zip(starts, ledger.offsets, strict=False)] == [piece for _, piece in pairs]
    assert list(ledger.offsets) == sorted(ledger.offsets)
    assert (ledger.offsets[-1] if pairs else 0) == len(ledger.text)


@given(first=tokens, second=tokens)
def test_followed_by_keeps_the_invariants(first: list[tuple[int, bytes]], second: list[tuple[int, bytes]]) -> None:
    ledger = ledger_of(first)
    longer = ledger.followed_by([i for i, _ in second], [piece for _, piece in second], "g")
    check(longer, [*first, *second])
    check(ledger, first)
    assert longer.tokenizer_hash == "g"


@given(pairs=tokens, data=st.data())
def test_kept_is_the_beginning(pairs: list[tuple[int, bytes]], data: st.DataObject) -> None:
    ledger = ledger_of(pairs)
    tokens_kept = data.draw(st.integers(0, len(pairs)))
    check(ledger.kept(tokens_kept), pairs[:tokens_kept])
    assert ledger.kept(tokens_kept).tokenizer_hash == "h"
    rest = pairs[tokens_kept:]
    again = ledger.kept(tokens_kept).followed_by([i for i, _ in rest], [piece for _, piece in rest], "h")
    assert again == ledger == Ledger.from_proto(ledger.to_proto())
    within = data.draw(st.integers(0, len(ledger.text)))
    assert ledger.tokens_within(within) == sum(end <= within for end in ledger.offsets)


@given(sizes=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=6), data=st.data())
def test_turns_stay_as_long_as_they_are_whole(sizes: list[tuple[int, int]], data: st.DataObject) -> None:
    ledger, ends = Ledger(), []
    for said, generated in sizes:
        ledger = ledger.followed_by([7] * (said + generated), [b"x"] * (said + generated), "h", generated)
        ends.append(TurnPlace(len(ledger), generated))
    assert ledger.turns == tuple(ends)
    tokens_kept = data.draw(st.integers(0, len(ledger)))
    kept = ledger.kept(tokens_kept)
    assert kept.turns == tuple(turn for turn in ends if turn.end_token <= tokens_kept)
    assert kept.followed_by([8], [b"y"], "h", 1).turns == (*kept.turns, TurnPlace(tokens_kept + 1, 1))
    assert kept.followed_by([8], [b"y"], "h").turns == kept.turns, "tokens that are no turn"
    known = kept.followed_by([8], [b"y"], "h", 1, message_hashes=[b"one", b"two"])
    assert known.turns[-1] == TurnPlace(tokens_kept + 1, 1, 2, b"two")


@given(common=st.binary(max_size=20), a=st.binary(max_size=3), b=st.binary(max_size=3))
def test_the_common_beginning_of_texts_and_of_tokens(common: bytes, a: bytes, b: bytes) -> None:
    left, right = common + a, common + b
    expected = next(
        (i for i, (x, y) in enumerate(zip(left, right, strict=False)) if x != y), min(len(left), len(right))
    )
    assert common_length(left, right) == expected
    assert common_length(np.array([*left], np.uint32), np.array([*right], np.uint32)) == expected

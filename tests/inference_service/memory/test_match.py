import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentmem.kv.ledger import Ledger, common_length
from agentmem.v1.types_pb2 import (
    MATCH_DIVERGE,
    MATCH_EXACT,
    MATCH_EXTEND,
    MATCH_NEW,
    MATCH_PARTIAL,
    MISS_REASON_ABSENT,
    MISS_REASON_BELOW_MIN,
    MISS_REASON_DIVERGED,
    MISS_REASON_UNSPECIFIED,
)
from inference_service.memory.match import Matched, match_text, match_tokens
from inference_service.text.prompt import Rendered, Span

ANY = 1


def ledger_of(*pieces: bytes) -> Ledger:
    return Ledger().followed_by(range(len(pieces)), pieces, "h")


def match(pieces: list[bytes], prompt: bytes, min_tokens: int = ANY) -> Matched:
    return match_text(ledger_of(*pieces), [], Rendered(prompt), min_tokens)


@pytest.mark.parametrize(
    ("prompt", "kind", "keep", "reason"),
    [
        (b"abcdef", MATCH_EXACT, 2, MISS_REASON_UNSPECIFIED),
        (b"abcdefg", MATCH_EXTEND, 3, MISS_REASON_UNSPECIFIED),
        (b"abcdxx", MATCH_PARTIAL, 2, MISS_REASON_DIVERGED),
        (b"abcxef", MATCH_PARTIAL, 1, MISS_REASON_DIVERGED),
        (b"abcd", MATCH_PARTIAL, 2, MISS_REASON_UNSPECIFIED),
        (b"abcde", MATCH_PARTIAL, 2, MISS_REASON_UNSPECIFIED),
        (b"ab", MATCH_PARTIAL, 1, MISS_REASON_UNSPECIFIED),
        (b"a", MATCH_DIVERGE, 0, MISS_REASON_DIVERGED),
        (b"axcdef", MATCH_DIVERGE, 0, MISS_REASON_DIVERGED),
        (b"xbcdef", MATCH_DIVERGE, 0, MISS_REASON_DIVERGED),
    ],
)
def test_kinds(prompt: bytes, kind: int, keep: int, reason: int) -> None:
    assert match([b"ab", b"cd", b"ef"], prompt) == Matched(kind, keep, reason)


def test_no_ledger_is_new() -> None:
    assert match([], b"abc") == Matched(MATCH_NEW, 0, MISS_REASON_ABSENT)
    assert match_tokens(Ledger(), (1,), ANY) == Matched(MATCH_NEW, 0, MISS_REASON_ABSENT)


@pytest.mark.parametrize(("min_tokens", "kind"), [(1, MATCH_PARTIAL), (2, MATCH_PARTIAL), (3, MATCH_DIVERGE)])
def test_a_short_common_beginning_is_not_worth_keeping(min_tokens: int, kind: int) -> None:
    matched = match([b"ab", b"cd", b"ef"], b"abcdxx", min_tokens)
    assert matched.kind == kind
    assert matched.keep_tokens == (2 if kind == MATCH_PARTIAL else 0)
    assert matched.reason == (MISS_REASON_DIVERGED if kind == MATCH_PARTIAL else MISS_REASON_BELOW_MIN)


def test_a_ledger_that_goes_on_is_kept_however_short_it_is() -> None:
    assert match([b"ab"], b"abc", 1000) == Matched(MATCH_EXTEND, 1)
    assert match([b"ab"], b"ab", 1000) == Matched(MATCH_EXACT, 0)


def test_special_token_and_its_spelling_are_not_the_same() -> None:
    ledger = ledger_of(b"hi", b"<e>", b"more")
    special, spelled = [Span(2, 5)], Rendered(b"hi<e>more!")
    assert match_text(ledger, special, spelled, ANY) == Matched(MATCH_PARTIAL, 1, MISS_REASON_DIVERGED)
    assert match_text(ledger, [], Rendered(b"hi<e>more!", (Span(2, 5),)), ANY) == Matched(
        MATCH_PARTIAL, 1, MISS_REASON_DIVERGED
    )
    assert match_text(ledger, special, Rendered(b"hi<e>more!", (Span(2, 5),)), ANY) == Matched(MATCH_EXTEND, 3)
    assert match_text(ledger, [], spelled, ANY) == Matched(MATCH_EXTEND, 3)


def test_specials_behind_the_common_text_do_not_matter() -> None:
    ledger = ledger_of(b"<b>", b"hi", b"<e>")
    prompt = Rendered(b"<b>hi", (Span(0, 3),))
    assert match_text(ledger, [Span(0, 3), Span(5, 8)], prompt, ANY) == Matched(MATCH_PARTIAL, 2)
    longer = Rendered(b"<b>hi<e>you<e>", (Span(0, 3), Span(5, 8), Span(11, 14)))
    assert match_text(ledger, [Span(0, 3), Span(5, 8)], longer, ANY) == Matched(MATCH_EXTEND, 3)


def test_a_special_token_that_is_cut_off_is_not_common() -> None:
    ledger = ledger_of(b"hi", b"<e>")
    assert match_text(ledger, [Span(2, 5)], Rendered(b"hi<e"), ANY) == Matched(MATCH_PARTIAL, 1, MISS_REASON_DIVERGED)


def test_one_special_token_and_two_of_the_same_spelling() -> None:
    ledger = ledger_of(b"<a><a>")
    prompt = Rendered(b"<a><a>", (Span(0, 3), Span(3, 6)))
    assert match_text(ledger, [Span(0, 6)], prompt, ANY).kind == MATCH_DIVERGE


def test_a_token_that_ends_inside_a_character() -> None:
    smile = "🙂".encode()
    pieces = [b"hi", smile[:2], smile[2:], b"!"]
    assert match(pieces, b"hi" + smile + b"?") == Matched(MATCH_PARTIAL, 3, MISS_REASON_DIVERGED)
    other = b"hi" + "🙃".encode()
    assert match(pieces, other) == Matched(MATCH_PARTIAL, 2, MISS_REASON_DIVERGED), "both begin with these bytes"


def test_tokens_without_text() -> None:
    assert match([b"ab", b"", b"cd", b""], b"abcd") == Matched(MATCH_EXACT, 3)
    assert match([b"ab", b"", b"cd", b""], b"abxx") == Matched(MATCH_PARTIAL, 2, MISS_REASON_DIVERGED)
    assert match([b"", b""], b"x") == Matched(MATCH_EXTEND, 2)


pieces_strategy = st.lists(st.sampled_from([b"a", b"ab", b"b", b"ba", b"", "é".encode(), b"\xc3"]), max_size=10)


@given(pieces=pieces_strategy, prompt=st.one_of(pieces_strategy.map(b"".join), st.just(b"")), data=st.data())
def test_kept_tokens_lie_wholly_in_the_common_text(pieces: list[bytes], prompt: bytes, data: st.DataObject) -> None:
    spans = st.integers(0, 12).flatmap(lambda at: st.builds(Span, st.just(at), st.integers(at + 1, at + 2)))
    sides = st.lists(spans, max_size=2, unique_by=lambda s: s.start).map(lambda found: sorted(found))
    ledger = ledger_of(*pieces)
    ledger_specials = [s for s in data.draw(sides) if s.end <= len(ledger.text)]
    prompt_specials = [s for s in data.draw(sides) if s.end <= len(prompt)]
    min_tokens = data.draw(st.integers(1, 4))
    matched = match_text(ledger, ledger_specials, Rendered(prompt, tuple(prompt_specials)), min_tokens)
    kept = ledger.kept(matched.keep_tokens)
    assert prompt.startswith(kept.text)
    end = len(kept.text)
    assert [s for s in ledger_specials if s.start < end] == [s for s in prompt_specials if s.start < end]
    assert (matched.kind == MATCH_NEW) == (not pieces)
    if matched.kind in (MATCH_NEW, MATCH_DIVERGE):
        assert matched.keep_tokens == 0
        assert matched.reason != MISS_REASON_UNSPECIFIED
    if matched.kind == MATCH_EXTEND:
        assert matched.keep_tokens == len(ledger)
        assert len(prompt) > len(ledger.text)
    if matched.kind == MATCH_EXACT:
        assert prompt == ledger.text
        assert ledger_specials == prompt_specials
        assert matched.keep_tokens == len(ledger) - 1
    if matched.kind == MATCH_PARTIAL:
        assert matched.keep_tokens >= min_tokens
        assert matched.reason == MISS_REASON_DIVERGED or ledger.text.startswith(prompt)


ids = st.lists(st.integers(0, 2), max_size=8).map(tuple)


@given(a=ids, b=ids)
def test_common_length(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    common = common_length(a, b)
    assert a[:common] == b[:common]
    assert common == min(len(a), len(b)) or a[common] != b[common]
    assert common_length(bytes(a), bytes(b)) == common


@pytest.mark.parametrize(
    ("prompt", "kind", "keep", "reason"),
    [
        ([1, 2, 3], MATCH_EXACT, 2, MISS_REASON_UNSPECIFIED),
        ([1, 2, 3, 4], MATCH_EXTEND, 3, MISS_REASON_UNSPECIFIED),
        ([1, 2], MATCH_PARTIAL, 2, MISS_REASON_UNSPECIFIED),
        ([1, 2, 9], MATCH_PARTIAL, 2, MISS_REASON_DIVERGED),
        ([1], MATCH_DIVERGE, 0, MISS_REASON_BELOW_MIN),
        ([9, 2, 3], MATCH_DIVERGE, 0, MISS_REASON_DIVERGED),
    ],
)
def test_kinds_of_token_prompts(prompt: list[int], kind: int, keep: int, reason: int) -> None:
    ledger = Ledger().followed_by([1, 2, 3], [b"a", b"b", b"c"], "h")
    assert match_tokens(ledger, tuple(prompt), 2) == Matched(kind, keep, reason)

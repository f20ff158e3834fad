import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentmem.kv.ledger import Ledger
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


def partial(keep: int) -> Matched:
    return Matched(MATCH_PARTIAL, keep, MISS_REASON_DIVERGED)


ABC, SMILE = [b"ab", b"cd", b"ef"], "🙂".encode()
HALVES, SILENT = [b"hi", SMILE[:2], SMILE[2:], b"!"], [b"ab", b"", b"cd", b""]


@pytest.mark.parametrize(
    ("pieces", "prompt", "least", "wanted"),
    [
        (ABC, b"abcdef", ANY, Matched(MATCH_EXACT, 2)),
        (ABC, b"abcdefg", ANY, Matched(MATCH_EXTEND, 3)),
        (ABC, b"abcdxx", ANY, partial(2)),
        (ABC, b"abcxef", ANY, partial(1)),
        (ABC, b"abcd", ANY, Matched(MATCH_PARTIAL, 2)),
        (ABC, b"abcde", ANY, Matched(MATCH_PARTIAL, 2)),
        (ABC, b"ab", ANY, Matched(MATCH_PARTIAL, 1)),
        *((ABC, prompt, ANY, Matched(MATCH_DIVERGE, 0, MISS_REASON_DIVERGED)) for prompt in (b"a", b"axcdef", b"xbc")),
        (ABC, b"abcdxx", 2, partial(2)),
        (ABC, b"abcdxx", 3, Matched(MATCH_DIVERGE, 0, MISS_REASON_BELOW_MIN)),
        ([b"ab"], b"abc", 1000, Matched(MATCH_EXTEND, 1)),  # what goes on is kept however short it is
        ([b"ab"], b"ab", 1000, Matched(MATCH_EXACT, 0)),
        ([], b"abc", ANY, Matched(MATCH_NEW, 0, MISS_REASON_ABSENT)),
        (HALVES, b"hi" + SMILE + b"?", ANY, partial(3)),
        (HALVES, b"hi" + "🙃".encode(), ANY, partial(2)),  # both begin with these bytes
        (SILENT, b"abcd", ANY, Matched(MATCH_EXACT, 3)),
        (SILENT, b"abxx", ANY, partial(2)),
        ([b"", b""], b"x", ANY, Matched(MATCH_EXTEND, 2)),
    ],
)
def test_kinds(pieces: list[bytes], prompt: bytes, least: int, wanted: Matched) -> None:
    assert match_text(ledger_of(*pieces), [], Rendered(prompt), least) == wanted


TOLD, OPENED, TWICE = [b"hi", b"<e>", b"more"], [b"<b>", b"hi", b"<e>"], (Span(0, 3), Span(3, 6))


@pytest.mark.parametrize(
    ("pieces", "specials", "prompt", "wanted"),
    [
        (TOLD, [Span(2, 5)], Rendered(b"hi<e>more!"), partial(1)),
        (TOLD, [], Rendered(b"hi<e>more!", (Span(2, 5),)), partial(1)),
        (TOLD, [Span(2, 5)], Rendered(b"hi<e>more!", (Span(2, 5),)), Matched(MATCH_EXTEND, 3)),
        (TOLD, [], Rendered(b"hi<e>more!"), Matched(MATCH_EXTEND, 3)),
        (OPENED, [Span(0, 3), Span(5, 8)], Rendered(b"<b>hi", (Span(0, 3),)), Matched(MATCH_PARTIAL, 2)),
        (
            OPENED,
            [Span(0, 3), Span(5, 8)],
            Rendered(b"<b>hi<e>you<e>", (Span(0, 3), Span(5, 8), Span(11, 14))),
            Matched(MATCH_EXTEND, 3),
        ),
        ([b"hi", b"<e>"], [Span(2, 5)], Rendered(b"hi<e"), partial(1)),
        ([b"<a><a>"], [Span(0, 6)], Rendered(b"<a><a>", TWICE), Matched(MATCH_DIVERGE, 0, MISS_REASON_DIVERGED)),
    ],
    ids=[
        *("special and spelled", "spelled and special", "both special", "both spelled", "special after what is common"),
        *("special in what is common, and after it", "special that is cut off", "one and two of one spelling"),
    ],
)
def test_special_tokens(pieces: list[bytes], specials: list[Span], prompt: Rendered, wanted: Matched) -> None:
    assert match_text(ledger_of(*pieces), specials, prompt, ANY) == wanted


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
    assert match_tokens(Ledger(), tuple(prompt), 2) == Matched(MATCH_NEW, 0, MISS_REASON_ABSENT)
    ledger = Ledger().followed_by([1, 2, 3], [b"a", b"b", b"c"], "h")
    assert match_tokens(ledger, tuple(prompt), 2) == Matched(kind, keep, reason)

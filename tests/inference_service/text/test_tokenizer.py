import itertools
import string
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend
from tokenizers import decoders

from inference_service.text.tokenizer import Tokenizer
from tests.allocated import malloc_bytes
from tests.inference_service.real_tokenizers import (
    SPECIALS,
    byte_level,
    byte_level_backend,
    byte_level_with_bos,
    llama3_like,
    nfc,
    sentence_piece,
)

BYTE_LEVEL = [byte_level, llama3_like]

snippets = st.sampled_from(
    [
        *("the colour", " of", " boat", "it's", "'ll", " 1234567", "89", "  ", "\n", "\n\n ", "\t"),
        *("é", "e\u0301", "東京", "🙂", "ẞ"),
    ]
)
texts = st.lists(st.one_of(snippets, st.text(max_size=6)), max_size=12).map("".join)
with_look_alikes = st.lists(st.one_of(texts, st.sampled_from([*SPECIALS, "<|im_", "end|>"])), max_size=6).map("".join)


@pytest.mark.parametrize("make", BYTE_LEVEL)
@given(text=with_look_alikes)
@pytest.mark.parametrize("parse_special", [False, True])
def test_bytes_of_the_tokens_are_the_bytes_of_the_text(
    make: Callable[[], Tokenizer], parse_special: bool, text: str
) -> None:
    tokenizer = make()
    token_ids = tokenizer.encode(text, parse_special=parse_special)
    assert b"".join(tokenizer.token_bytes(i) for i in token_ids) == text.encode()
    assert tokenizer.decode(token_ids) == text.encode()
    assert b"".join(tokenizer.pieces(token_ids)) == text.encode()


def test_every_token_has_the_bytes_that_the_decoder_gives() -> None:
    tokenizer, backend = byte_level(), byte_level_backend()
    for token_id in range(backend.get_vocab_size()):
        piece = tokenizer.token_bytes(token_id)
        assert piece
        assert backend.decode([token_id], skip_special_tokens=False) == piece.decode(errors="replace")


@given(text=texts)
def test_sentence_piece_loses_nothing_but_adds_a_space(text: str) -> None:
    tokenizer = sentence_piece()
    decoded = tokenizer.decode(tokenizer.encode(text, parse_special=False))
    plain = text.replace("\u2581", " ")
    assert decoded.decode() == (f" {plain}" if plain else "")


@given(text=with_look_alikes, special=st.sampled_from(["", "</s>"]))
def test_sentence_piece_adds_no_space_to_text_that_goes_on(text: str, special: str) -> None:
    tokenizer = sentence_piece()
    plain = text.replace("\u2581", " ")
    assert tokenizer.decode(tokenizer.encode(text, parse_special=True, continues=True)).decode() == plain
    ids = tokenizer.encode(f"{special}x", parse_special=True, continues=True)
    assert tokenizer.decode(ids).decode() == (f"{special} x" if special else "x")


def test_sentence_piece_byte_tokens_stand_for_their_byte() -> None:
    tokenizer = sentence_piece()
    token_ids = tokenizer.encode("🙂", parse_special=False)
    assert [tokenizer.token_bytes(i) for i in token_ids[-4:]] == [b"\xf0", b"\x9f", b"\x99", b"\x82"]
    assert tokenizer.token_bytes(3 + 0xF0) == b"\xf0"


def test_unknown_ids_stand_for_nothing() -> None:
    tokenizer = byte_level()
    assert tokenizer.token_bytes(tokenizer.vocab_size) == b""
    assert tokenizer.token_bytes(10**9) == b""
    last = tokenizer.vocab_size - 1
    assert tokenizer.pieces(iter([last, 10**9, last])) == [
        tokenizer.token_bytes(last),
        b"",
        tokenizer.token_bytes(last),
    ]
    assert tokenizer.token_bytes(tokenizer.vocab_size - 1) != b""


@given(before=texts, after=texts, special=st.sampled_from(SPECIALS))
def test_specials_are_parsed_only_when_asked(before: str, after: str, special: str) -> None:
    tokenizer = byte_level()
    text = before + special + after
    special_id = tokenizer.special_id(special)
    assert tokenizer.special_ids == {tokenizer.special_id(each) for each in SPECIALS} == {0, 1, 2}
    assert tokenizer.special_ids.isdisjoint(tokenizer.encode(text, parse_special=False))
    parsed = tokenizer.encode(text, parse_special=True)
    assert parsed.count(special_id) == text.count(special)
    assert list(tokenizer.special_spans(text)) == [
        (at, at + len(special)) for at in range(len(text)) if text.startswith(special, at)
    ]


def test_longest_special_wins() -> None:
    backend = byte_level_backend()
    backend.add_special_tokens(["<|im_end|>2", "<|im"])
    tokenizer = Tokenizer(backend, [])
    assert list(tokenizer.special_spans("<|im_end|>2 <|im_end|> <|im")) == [(0, 11), (12, 22), (23, 27)]
    ids = tokenizer.encode("<|im_end|>2<|im", parse_special=True)
    assert [tokenizer.token_bytes(i) for i in ids] == [b"<|im_end|>2", b"<|im"]


@pytest.mark.parametrize(
    ("make", "prefix"),
    [(byte_level, ()), (byte_level_with_bos, (0,)), (llama3_like, (0,)), (nfc, ()), (sentence_piece, (1,))],
)
def test_prefix_ids_are_those_that_the_post_processor_puts_in_front(
    make: Callable[[], Tokenizer], prefix: tuple[int, ...]
) -> None:
    tokenizer = make()
    assert tokenizer.prefix_ids == prefix
    for parse_special in (False, True):
        assert not tokenizer.special_ids & set(tokenizer.encode("text", parse_special=parse_special)), "nor does encode"
        assert tokenizer.encode("", parse_special=parse_special) == []


def _without_decoder() -> Backend:
    backend = byte_level_backend()
    backend.decoder = None
    return backend


def _strips_each() -> Backend:
    """Strips a space of each token, which its replacements alone do not say."""
    backend = byte_level_backend()
    backend.decoder = decoders.Sequence([decoders.Replace("Ġ", " "), decoders.Strip(" ", 1, 0), decoders.Fuse()])
    return backend


def _end_of_word() -> Backend:
    backend = byte_level_backend()
    backend.decoder = decoders.Sequence([decoders.BPEDecoder(), decoders.Fuse()])
    return backend


@pytest.mark.parametrize(
    ("make", "named"), [(_without_decoder, "none"), (_end_of_word, "BPEDecoder, Fuse"), (_strips_each, "Strip")]
)
def test_decoders_that_do_not_tell_bytes_are_refused_by_name(make: Callable[[], Backend], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        Tokenizer(make(), [])


@pytest.mark.parametrize("make", BYTE_LEVEL)
@given(text=texts, data=st.data())
def test_cutting_at_a_pre_token_boundary_changes_no_token(
    make: Callable[[], Tokenizer], text: str, data: st.DataObject
) -> None:
    tokenizer = make()
    cut = data.draw(st.integers(0, len(text)))
    boundary = tokenizer.pre_token_boundary(text[:cut], text[cut:])
    assert 0 <= boundary <= cut
    halves = [tokenizer.encode(half, parse_special=False) for half in (text[:boundary], text[boundary:])]
    assert [*halves[0], *halves[1]] == tokenizer.encode(text, parse_special=False)


@pytest.mark.parametrize(
    ("make", "before", "after", "boundary"),
    [
        (byte_level, "the col", "our", 3),
        (byte_level, "the colour", " of", 10),
        (byte_level, "it'", "s", 2),
        (byte_level, "", "abc", 0),
        (byte_level, "a  ", "b", 2),
        (byte_level, "a b", "", 1),
        (llama3_like, "a   ", "1", 3),
        (sentence_piece, "several words ", "and more", 7),
        (sentence_piece, "several", " words", 7),
        (sentence_piece, "several", "words", 0),
    ],
)
def test_pre_token_boundary_is_the_last_one(
    make: Callable[[], Tokenizer], before: str, after: str, boundary: int
) -> None:
    """Llama 3 splits "a   1" into "a", two spaces, one space, "1"; and "a   " alone into "a" and three spaces."""
    assert make().pre_token_boundary(before, after) == boundary


@given(text=texts, data=st.data())
def test_without_a_pre_tokenizer_a_boundary_is_before_a_space(text: str, data: st.DataObject) -> None:
    tokenizer = sentence_piece()
    cut = data.draw(st.integers(0, len(text)))
    boundary = tokenizer.pre_token_boundary(text[:cut], text[cut:])
    assert boundary <= cut
    assert not boundary or text[boundary] == " " != text[boundary - 1]
    halves = [
        tokenizer.encode(half, parse_special=False, continues=True) for half in (text[:boundary], text[boundary:])
    ]
    assert [*halves[0], *halves[1]] == tokenizer.encode(text, parse_special=False, continues=True)


def test_no_boundary_is_inside_an_added_token() -> None:
    backend = byte_level_backend()
    backend.add_tokens(["<think now>"])
    tokenizer = Tokenizer(backend, [])
    assert tokenizer.pre_token_boundary("so <think", " now> it") == 3
    assert tokenizer.pre_token_boundary("so <think", " then it") == 9


@pytest.mark.skipif(malloc_bytes() is None, reason="glibc 2.33 or newer says what is allocated")
def test_threads_that_have_encoded_keep_no_words() -> None:
    words = " ".join(map("".join, itertools.islice(itertools.permutations(string.ascii_lowercase, 7), 12_000)))
    tokenizer = Tokenizer(byte_level_backend(), [])
    with ThreadPoolExecutor(1) as thread:
        thread.submit(tokenizer.encode, "once", parse_special=False).result()
        before = malloc_bytes()
        assert len(thread.submit(tokenizer.encode, words, parse_special=False).result()) > 12_000
        after = malloc_bytes()
    assert before is not None and after is not None
    assert after - before < 1 << 20

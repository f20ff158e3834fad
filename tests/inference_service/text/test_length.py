"""The fewest tokens that a text may have."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Backend

from inference_service.text.length import LeastTokens
from inference_service.text.tokenizer import Tokenizer
from tests.inference_service.real_tokenizers import CORPUS, byte_level_backend, nfc_backend, sentence_piece_backend

texts = st.lists(st.one_of(st.sampled_from([*CORPUS[:3], "e\u0301", "\u212b", "  ", "\n\n"]), st.text())).map("".join)


@pytest.mark.parametrize("make", [byte_level_backend, nfc_backend, sentence_piece_backend])
@given(data=st.data())
def test_no_text_has_fewer(make: Callable[[], Backend], data: st.DataObject) -> None:
    tokenizer = Tokenizer(make(), [])
    text = data.draw(texts)
    tokens = len(tokenizer.encode(text, parse_special=True, continues=True))
    assert not tokenizer.certainly_exceeds(text.encode(), tokens)


def test_the_longest_tokens_lead_through_the_text() -> None:
    backend = byte_level_backend()
    backend.add_tokens(["=" * 40])
    bound = Tokenizer(backend, [])
    assert not bound.certainly_exceeds(b"=" * 400, 10)
    assert bound.certainly_exceeds(b"=" * 400, 9)
    assert bound.certainly_exceeds(b"=" * 401, 10)
    assert bound.certainly_exceeds(b"x" * 400, 100)
    assert not bound.certainly_exceeds(b"", 0)


@pytest.mark.parametrize("over", [-1, 0, 1])
def test_windows_are_joined(over: int) -> None:
    backend = byte_level_backend()
    backend.add_tokens(["=" * 8])
    bound = Tokenizer(backend, [])
    size = (1 << 18) + over
    fewest = -(-size // 8)
    assert not bound.certainly_exceeds(b"=" * size, fewest)
    assert bound.certainly_exceeds(b"=" * size, fewest - 1)


def _shortening(backend: Backend) -> Backend:
    backend.normalizer = normalizers.Replace(Regex(" +"), " ")
    return backend


def _dropping(backend: Backend) -> Backend:
    backend.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), backend.pre_tokenizer])
    return backend


def _stripping(backend: Backend) -> Backend:
    backend.add_special_tokens([AddedToken("<|user|>", rstrip=True)])
    return backend


@pytest.mark.parametrize("change", [_shortening, _dropping, _stripping])
def test_nothing_is_said_where_tokens_have_less_than_the_text(change: Callable[[Backend], Backend]) -> None:
    backend = byte_level_backend()
    pieces, byte_ids = Tokenizer(backend, [])._pieces, Tokenizer(backend, []).byte_ids
    assert LeastTokens(backend, pieces, byte_ids).exceed(b"x" * 400, 10)
    assert not LeastTokens(change(backend), pieces, byte_ids).exceed(b"x" * 400, 10)

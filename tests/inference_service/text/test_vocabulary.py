"""Tokens as bytes where the decoder is neither byte-level nor SentencePiece's."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models, pre_tokenizers, trainers
from tokenizers import Tokenizer as Backend

from agentmem.kv.ledger import Ledger
from agentmem.v1.types_pb2 import MATCH_EXTEND, MATCH_PARTIAL
from inference_service.memory.match import MatchLimits
from inference_service.memory.plan import Planner
from inference_service.text.rendering import Renderer
from inference_service.text.tokenizer import Tokenizer
from inference_service.text.vocabulary import token_pieces
from tests.inference_service.real_tokenizers import CORPUS, byte_level_backend, sentence_piece_backend


def word_level() -> Backend:
    """Whole words, without a decoder: joined by spaces."""
    backend = Backend(models.WordLevel(unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.train_from_iterator(CORPUS, trainers.WordLevelTrainer(special_tokens=["[UNK]", "<s>"], show_progress=False))
    return backend


def spaced() -> Backend:
    backend = word_level()
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return backend


def word_piece() -> Backend:
    """As BERT's: words, and what they go on with."""
    backend = Backend(models.WordPiece(unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.train_from_iterator(
        CORPUS, trainers.WordPieceTrainer(vocab_size=200, special_tokens=["[UNK]"], show_progress=False)
    )
    backend.decoder = decoders.WordPiece()
    return backend


WORDS = [word_level, spaced, word_piece]
words = st.lists(
    st.sampled_from(["The", "colour", "house", "is", ".", ",", "sea", "unheard", "it's", "42"]), min_size=1
)


@pytest.mark.parametrize("make", WORDS)
@given(said=words)
def test_words_decode_as_the_tokenizer_does(make: Callable[[], Backend], said: list[str]) -> None:
    backend = make()
    tokenizer = Tokenizer(backend, [])
    token_ids = tokenizer.encode(" ".join(said), parse_special=False)
    assert tokenizer.encode(" ".join(said), parse_special=False, continues=True) == token_ids
    ordinary = [i for i in token_ids if i not in tokenizer.special_ids]
    assert tokenizer.decode(ordinary).decode().removeprefix(" ") == backend.decode(ordinary).removeprefix(" ")


@pytest.mark.parametrize("make", WORDS)
def test_histories_of_words_are_matched_by_their_tokens(make: Callable[[], Backend]) -> None:
    tokenizer = Tokenizer(make(), [])
    renderer = Renderer(tokenizer, None)
    planner = Planner(tokenizer, renderer, MatchLimits(min_tokens=1))
    text = "The colour of the boat is green"
    first = planner.for_text(Ledger(), renderer.text(text, parse_special=True), heal_extension=True)
    ledger = Ledger().followed_by(first.sequence.tolist(), tokenizer.pieces(first.sequence.tolist()), tokenizer.hash)
    second = renderer.text(f"{text}, and the house by the sea is red.", parse_special=True)
    plan = planner.for_text(ledger, second, heal_extension=True)
    assert plan.sequence.tolist() == tokenizer.encode(second.text.decode(), parse_special=True)
    assert (plan.kind, plan.keep_tokens) in ((MATCH_EXTEND, len(ledger)), (MATCH_PARTIAL, len(ledger) - 1))


def test_added_tokens_go_through_the_decoder() -> None:
    backend = sentence_piece_backend()
    backend.add_tokens([AddedToken("▁▁▁", normalized=False), AddedToken("<td>", normalized=False)])
    backend.add_special_tokens([AddedToken("<turn▁end>", normalized=False)])
    pieces = token_pieces(backend)
    of = {content: pieces[backend.token_to_id(content)] for content in ("▁▁▁", "<td>", "<turn▁end>")}
    assert of == {"▁▁▁": b"   ", "<td>": b"<td>", "<turn▁end>": "<turn▁end>".encode()}


def test_added_words_of_byte_level_tokenizers_are_their_own_bytes() -> None:
    backend = byte_level_backend()
    backend.add_tokens(["naïve", "   "])
    tokenizer = Tokenizer(backend, [])
    assert tokenizer.decode(tokenizer.encode("a naïve   café", parse_special=False)) == "a naïve   café".encode()


def test_ids_may_have_gaps() -> None:
    backend = byte_level_backend()
    serialized = backend.to_str().replace('"added_tokens":[', '"added_tokens":[' + _added(5000) + ",")
    tokenizer = Tokenizer(Backend.from_str(serialized), [])
    (token_id,) = tokenizer.encode("<far>", parse_special=True)
    assert tokenizer.token_bytes(token_id) == b"<far>"
    assert tokenizer.encode("<far>", parse_special=False) == byte_level_tokens("<far>")


def byte_level_tokens(text: str) -> list[int]:
    return Tokenizer(byte_level_backend(), []).encode(text, parse_special=False)


def _added(token_id: int) -> str:
    flags = ",".join(f'"{name}":false' for name in ("single_word", "lstrip", "rstrip", "normalized"))
    return f'{{"id":{token_id},"content":"<far>",{flags},"special":true}}'

"""Tokens as bytes where the decoder is neither byte-level nor SentencePiece's; the fewest tokens of a text."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, trainers
from tokenizers import Tokenizer as Backend

from agentmem.errors import ContextExceeded
from agentmem.kv.ledger import Ledger
from agentmem.v1.types_pb2 import MATCH_EXTEND, MATCH_PARTIAL
from inference_service.memory.match import MatchLimits
from inference_service.memory.plan import Planner
from inference_service.text.rendering import Renderer
from inference_service.text.tokenizer import Tokenizer
from inference_service.text.vocabulary import LeastTokens, token_pieces
from tests.inference_service.real_tokenizers import CORPUS, byte_level_backend, nfc_backend, sentence_piece_backend


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


texts = st.lists(st.one_of(st.sampled_from([*CORPUS[:3], "e\u0301", "\u212b", "  ", "\n\n"]), st.text())).map("".join)


@pytest.mark.parametrize("make", [byte_level_backend, nfc_backend, sentence_piece_backend])
@given(data=st.data())
def test_no_text_has_fewer_tokens_than_its_bound(make: Callable[[], Backend], data: st.DataObject) -> None:
    tokenizer = Tokenizer(make(), [])
    text = data.draw(texts)
    tokens = len(tokenizer.encode(text, parse_special=True, continues=True))
    assert not tokenizer.certainly_exceeds(text.encode(), tokens)


def test_the_longest_tokens_lead_through_the_text() -> None:
    backend = byte_level_backend()
    backend.add_tokens(["=" * 40])
    tokenizer = Tokenizer(backend, [])
    assert not tokenizer.certainly_exceeds(b"=" * 400, 10)
    assert tokenizer.certainly_exceeds(b"=" * 400, 9)
    assert tokenizer.certainly_exceeds(b"=" * 401, 10)
    assert tokenizer.certainly_exceeds(b"x" * 400, 100)
    assert not tokenizer.certainly_exceeds(b"", 0)


@pytest.mark.parametrize("over", [-1, 0, 1])
def test_windows_are_joined(over: int) -> None:
    backend = byte_level_backend()
    backend.add_tokens(["=" * 8])
    tokenizer = Tokenizer(backend, [])
    size = (1 << 18) + over
    fewest = -(-size // 8)
    assert not tokenizer.certainly_exceeds(b"=" * size, fewest)
    assert tokenizer.certainly_exceeds(b"=" * size, fewest - 1)


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
def test_tokenizers_that_drop_bytes_have_no_bound(change: Callable[[Backend], Backend]) -> None:
    backend = byte_level_backend()
    pieces, byte_ids = Tokenizer(backend, [])._pieces, Tokenizer(backend, []).byte_ids
    assert LeastTokens(backend, pieces, byte_ids).exceed(b"x" * 400, 10)
    assert not LeastTokens(change(backend), pieces, byte_ids).exceed(b"x" * 400, 10)


@pytest.mark.parametrize("make", WORDS)
def test_a_text_that_fits_without_its_spaces_is_accepted(make: Callable[[], Backend]) -> None:
    tokenizer = Tokenizer(make(), [])
    renderer = Renderer(tokenizer, None, context_length=64)
    spaced_out = renderer.text(f"The{' ' * 5000}house", parse_special=True)
    assert renderer.encode(spaced_out) == tokenizer.encode("The house", parse_special=True)


def test_a_text_without_spaces_is_refused_before_it_is_tokenized(monkeypatch: pytest.MonkeyPatch) -> None:
    """No pre-token ends in it, so it would be tokenized whole."""
    backend = byte_level_backend()
    backend.add_tokens(["=" * 128])
    tokenizer = Tokenizer(backend, [])
    monkeypatch.setattr(tokenizer, "_encode", lambda *_: pytest.fail("tokenized"))
    renderer = Renderer(tokenizer, None, context_length=1000)
    with pytest.raises(ContextExceeded, match="more than 2000 tokens"):
        renderer.encode(renderer.text("a" * 200_000, parse_special=True))

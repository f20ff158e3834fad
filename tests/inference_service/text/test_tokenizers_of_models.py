"""Our tokenizers over those of real models: the same bytes as Hugging Face's decoder, and nothing tokenized twice."""

import random
import re
from functools import cache

import pytest

from inference_service.text.tokenizer import Tokenizer
from tests import npm_tokenizers
from tests.full_matrix import FULL

pytestmark = pytest.mark.sampled(4)

SEED = 20260
TEXTS = [
    "def f(x):\n    if x:\n        return [\n            x,\n\t\t\tNone,\n                  ]\n\n\n\n\n# end   \n",
    "The colour of the boat isn't green; it's   red.  Who'd  say 1234567 or 3.14159? <b>A</b> > </b> <td> </td>",
    "Die Grüße der Straße, naïve café, e\u0301 und ﬁ. 東京は日本の首都です。中文沒有空格 한국어도 있어요 Привет! مرحبا",
    "🙂👩‍👩‍👧‍👦🏳️‍🌈 \u200b\u00a0\u3000 ẞ ﷽ \U0001f9ff x\r\ny\x0b\x0c\x1f ½ ① ﹏",
    '[INST] <think>\n\n</think> <tool_call>{"name": "f"}</tool_call> <0x41> Ġthe Ċ ##ing',
    " leading, trailing ",
    "{" * 40 + " " * 50 + "=" * 70 + "\t" * 20 + "\n" * 35,
]
SPACES = (" ", "  ", "    ", "\n", "\n\n", "\t", "", "\r\n", " \n")


@cache
def tokenizer_of(name: str) -> Tokenizer:
    return Tokenizer(npm_tokenizers.backend(name), [1])


def any_text(draw: random.Random) -> str:
    """Parts of the texts, cut anywhere between characters."""
    parts = []
    for _ in range(draw.randint(1, 8)):
        text = draw.choice(TEXTS)
        start = draw.randrange(len(text))
        parts += [text[start : start + draw.randint(1, 60)], draw.choice(SPACES)]
    return "".join(parts)


def one_replacement(text: str) -> str:
    """Hugging Face's ByteFallback has a U+FFFD for each byte of what is no UTF-8, and Python for each try."""
    return re.sub("\ufffd+", "\ufffd", text)


@pytest.mark.slow
@pytest.mark.parametrize("name", npm_tokenizers.NAMES)
def test_each_token_stands_for_what_hugging_face_decodes(name: str) -> None:
    backend, tokenizer = npm_tokenizers.backend(name), tokenizer_of(name)
    (before,) = tokenizer.encode("a", parse_special=False)[-1:]
    first = backend.decode([before], skip_special_tokens=False)
    added = sorted(backend.get_added_tokens_decoder())
    token_ids = [*range(0, tokenizer.vocab_size, 1 if FULL else 7), *added]
    pairs = [[before, token_id] for token_id in token_ids]
    different = [
        (token_id, tokenizer.token_bytes(token_id), decoded)
        for token_id, decoded in zip(token_ids, backend.decode_batch(pairs, skip_special_tokens=False), strict=True)
        if first + one_replacement(tokenizer.token_bytes(token_id).decode(errors="replace")) != one_replacement(decoded)
    ]
    assert not different[:5]
    assert tokenizer.vocab_size == backend.get_vocab_size(with_added_tokens=True)


@pytest.mark.parametrize("name", npm_tokenizers.NAMES)
def test_texts_come_back_byte_for_byte(name: str) -> None:
    draw = random.Random(SEED)
    tokenizer = tokenizer_of(name)
    normalizer = npm_tokenizers.backend(name).normalizer
    for text in [*TEXTS, *(any_text(draw) for _ in range(300))]:
        if name == "qwen3":
            text = normalizer.normalize_str(text)  # NFC, which it tokenizes; other text is rewritten.
        for parse_special in (False, True):
            token_ids = tokenizer.encode(text, parse_special=parse_special, continues=True)
            assert tokenizer.decode(token_ids) == text.encode()
            if name != "llama2":  # It puts spaces of its own after special tokens.
                expected = npm_tokenizers.backend(name).encode(text, add_special_tokens=False).ids
                assert not parse_special or token_ids == expected


@pytest.mark.parametrize("name", npm_tokenizers.NAMES)
def test_tokens_are_the_same_where_a_text_is_cut_at_a_boundary(name: str) -> None:
    draw = random.Random(SEED)
    tokenizer = tokenizer_of(name)
    found = 0
    for _ in range(200):
        text = any_text(draw)
        at = draw.randint(0, len(text))
        cut = tokenizer.pre_token_boundary(text[:at], text[at:])
        found += bool(cut)
        whole = tokenizer.encode(text, parse_special=False, continues=True)
        parts = [tokenizer.encode(part, parse_special=False, continues=True) for part in (text[:cut], text[cut:])]
        assert [*parts[0], *parts[1]] == whole, (text, cut)
    assert found > 100


@pytest.mark.slow
@pytest.mark.parametrize("name", npm_tokenizers.NAMES)
def test_long_texts_have_the_same_tokens_in_parts(name: str) -> None:
    draw = random.Random(SEED)
    tokenizer, backend = tokenizer_of(name), npm_tokenizers.backend(name)
    specials = [backend.id_to_token(i) for i in sorted(tokenizer.special_ids)]
    text = "".join(any_text(draw) + draw.choice(["", draw.choice(specials)]) for _ in range(1500 if FULL else 1000))
    text += "y" * 100_000 + " and it goes on " + "1" * 70_000
    for parse_special in (False, True):
        parts = [*tokenizer._cuts.parts(text, parse_special=parse_special)]
        assert "".join(parts) == text
        assert len(parts) > 2
        in_parts = tokenizer.encode(text, parse_special=parse_special, continues=True)
        assert in_parts == tokenizer._encode(text, parse_special, True)


@pytest.mark.slow("gemma3", "qwen3")
@pytest.mark.parametrize("name", npm_tokenizers.NAMES)
def test_no_text_that_fits_is_refused_before_it_is_tokenized(name: str) -> None:
    draw = random.Random(SEED)
    tokenizer = tokenizer_of(name)
    for _ in range(60):
        text = any_text(draw) * draw.randint(1, 4)
        tokens = len(tokenizer.encode(text, parse_special=True, continues=True))
        assert not tokenizer.certainly_exceeds(text.encode(), tokens)
        assert tokenizer.certainly_exceeds(text.encode(), tokens // 60)
    for huge in ("y ", "y", "東京", "a1", "🙂"):
        assert tokenizer.certainly_exceeds((huge * (1 << 20)).encode(), 1 << 16)

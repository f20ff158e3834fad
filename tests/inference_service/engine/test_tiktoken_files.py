"""A tiktoken.model and a table of what is known of its code, against tiktoken itself; and what is refused in words."""

import base64
import json
from pathlib import Path

import pytest
import tiktoken
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers.convert_slow_tokenizer import bytes_to_unicode

from agentmem.errors import FailedPrecondition
from inference_service.engine import tiktoken_files
from inference_service.engine.attention import AttentionBackend
from inference_service.models.opening import ModelSpec, open_network, open_text
from tests.tiny_models import BOS, CHATML, END, START, write_llama

PUBLISHED = "|".join(
    [
        r"""[\p{Han}]+""",
        r"""[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?""",
        r"""[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?""",
        r"""\p{N}{1,3}""",
        r""" ?[^\s\p{L}\p{N}]+[\r\n]*""",
        r"""\s*[\r\n]+""",
        r"""\s+(?!\S)""",
        r"""\s+""",
    ]
)
"""Moonshot's pattern, of Kimi K2."""
TEXTS = (
    "The colour of the boat is green, isn't it? I'LL say: they're 1234567 miles away.\r\n\n  Yes!  ",
    "中文English混合，北京市 Pascal 汉字abc。你好世界\n\n",
    "ÉCOLE naïve Ωμέγα שלום مرحبا हिन्दी ไทย 한국어 ー々〇 ǅ ᾳ ſ's 'ſ K'S",
    "def f(x):\n\treturn x ** 2  # → ✓ 🙂🙂\n",
)
SPECIALS = {0: BOS, 1: END, 5: START}
"""By their places after the file's tokens."""


def ranks() -> dict[bytes, int]:
    """A small vocabulary of bytes and merges, as tiktoken has it."""
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trained.train_from_iterator(TEXTS * 5, trainers.BpeTrainer(vocab_size=600, initial_alphabet=alphabet))
    of_character = {character: byte for byte, character in bytes_to_unicode().items()}
    tokens = (
        bytes(of_character[each] for each in token) for token in sorted(trained.get_vocab(), key=trained.token_to_id)
    )
    merged = [token for token in tokens if len(token) > 1]
    return {token: rank for rank, token in enumerate([*(bytes([byte]) for byte in range(256)), *merged])}


RANKS = ranks()


def write(directory: Path, kind: str = "TikTokenTokenizer") -> Path:
    """Put such a tokenizer in the place of a model's."""
    directory.mkdir(exist_ok=True)
    (directory / "tokenizer.json").unlink(missing_ok=True)
    lines = (base64.b64encode(token) + b" %d\n" % rank for token, rank in RANKS.items())
    (directory / "tiktoken.model").write_bytes(b"".join(lines))
    named = {str(len(RANKS) + at): {"content": name, "special": True} for at, name in SPECIALS.items()}
    config = {
        "tokenizer_class": kind,
        "auto_map": {"AutoTokenizer": ["tokenization_moonshot.TikTokenTokenizer", None]},
        "added_tokens_decoder": named,
        "bos_token": BOS,
        "eos_token": END,
        "additional_special_tokens": [START],
        "chat_template": CHATML,
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
    (directory / "tokenization_moonshot.py").write_text("raise SystemExit('this is never run')")
    return directory


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return tiktoken_files.load(write(tmp_path_factory.mktemp("kimi")))


@pytest.fixture(scope="module")
def theirs() -> tiktoken.Encoding:
    ids = range(len(RANKS), len(RANKS) + 258)
    specials = {SPECIALS.get(at, f"<|reserved_token_{number}|>"): number for at, number in enumerate(ids)}
    return tiktoken.Encoding("kimi", pat_str=PUBLISHED, mergeable_ranks=RANKS, special_tokens=specials)


@pytest.mark.parametrize("text", TEXTS)
def test_tokens_are_those_of_tiktoken(text: str, ours: Tokenizer, theirs: tiktoken.Encoding) -> None:
    for part in (text, text[3:], text.upper(), text.replace(" ", "  ")):
        assert ours.encode(part, add_special_tokens=False).ids == theirs.encode_ordinary(part)
    marked = f"{START}user\n{text}{END}<|reserved_token_{len(RANKS) + 7}|>"
    assert ours.encode(marked, add_special_tokens=False).ids == theirs.encode(marked, allowed_special="all")


@given(st.text(alphabet=st.sampled_from("".join(TEXTS)), max_size=40))
def test_tokens_of_any_text_are_those_of_tiktoken(ours: Tokenizer, theirs: tiktoken.Encoding, text: str) -> None:
    assert ours.encode(text, add_special_tokens=False).ids == theirs.encode_ordinary(text)


def test_a_model_with_such_a_tokenizer_is_opened(tmp_path: Path, theirs: tiktoken.Encoding) -> None:
    directory = write(write_llama(tmp_path / "m", vocab_size=len(RANKS) + 258))
    text = open_text(ModelSpec("m", directory))
    assert len(RANKS) + 1 in text.tokenizer.eos_ids
    assert text.tokenizer.encode(TEXTS[1], parse_special=False) == theirs.encode_ordinary(TEXTS[1])
    assert text.template is not None
    rendered = text.template([{"role": "user", "content": "Hi"}], tokenize=False, add_generation_prompt=True)
    assert rendered == f"{BOS}{START}user\nHi{END}\n{START}assistant\n"


def remove_vocabulary(directory: Path) -> None:
    (directory / "tiktoken.model").write_bytes(b"bm90 base64!\n")


def shift_specials(directory: Path) -> None:
    config = json.loads((directory / "tokenizer_config.json").read_text())
    config["added_tokens_decoder"]["7"] = {"content": "<|other|>"}
    (directory / "tokenizer_config.json").write_text(json.dumps(config))


def of_nobody(directory: Path) -> None:
    write(directory, "TokenizerOfNobody")


def another_format(directory: Path) -> None:
    (directory / "tiktoken.model").rename(directory / "qwen.tiktoken")


def tekken(directory: Path) -> None:
    for name in ("tiktoken.model", "tokenizer_config.json", "tokenization_moonshot.py"):
        (directory / name).unlink()
    (directory / "tekken.json").write_text(json.dumps({"config": {}, "vocab": []}))


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (remove_vocabulary, "tiktoken.model is damaged"),
        (shift_specials, "special tokens in tokenizer_config.json do not follow"),
        (of_nobody, "TokenizerOfNobody. is tiktoken.model and code of its own repository, which is never run"),
        (another_format, "it needs code of its own repository, which is never run"),
        (tekken, "tokenizer.json is missing: tekken.json alone"),
    ],
)
def test_what_is_not_known_is_refused_in_true_words(tmp_path: Path, harm, said: str) -> None:  # type: ignore[no-untyped-def]
    directory = write(write_llama(tmp_path / "m"))
    harm(directory)
    with pytest.raises(FailedPrecondition, match=said) as caught:
        open_text(ModelSpec("m", directory))
    assert "trust_remote_code" not in caught.value.message


def test_a_network_of_the_repositorys_code_is_refused_in_true_words(tmp_path: Path) -> None:
    directory = write_llama(tmp_path / "m")
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps({**config, "model_file": "model.py"}))
    spec = ModelSpec("m", directory)
    with pytest.raises(FailedPrecondition, match="code of its own repository, which is never run"):
        open_network(spec, open_text(spec), AttentionBackend())

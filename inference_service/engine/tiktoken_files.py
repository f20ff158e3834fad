"""Tokenizers of a tiktoken.model and code of known behaviour, which is never run."""

import base64
import binascii
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import tokenizers
from transformers.convert_slow_tokenizer import TikTokenConverter

FILE: Final = "tiktoken.model"
_CONFIG: Final = "tokenizer_config.json"
_BESIDE: Final = ("chat_template.jinja", "special_tokens_map.json")


class Known(NamedTuple):
    pattern: str
    specials: int


_LETTERS = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
_KIMI_PATTERN = "|".join(
    (
        r"[\p{Han}]+",
        rf"[^\r\n\p{{L}}\p{{N}}]?{_LETTERS[0]}*{_LETTERS[1]}+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        rf"[^\r\n\p{{L}}\p{{N}}]?{_LETTERS[0]}+{_LETTERS[1]}*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"\p{N}{1,3}",
        r" ?[^\s\p{L}\p{N}]+[\r\n]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    )
)

_KNOWN: Final[Mapping[str, Known]] = {"TikTokenTokenizer": Known(_KIMI_PATTERN, 258)}


def convert(directory: Path, target: Path) -> None:
    load(directory).save(str(target / "tokenizer.json"))
    config = {name: value for name, value in _config(directory).items() if name not in ("auto_map", "tokenizer_class")}
    (target / _CONFIG).write_text(json.dumps(config), encoding="utf-8")
    for name in _BESIDE:
        if (directory / name).is_file():
            shutil.copyfile(directory / name, target / name)


def load(directory: Path) -> tokenizers.Tokenizer:
    """Raises ValueError. Takes a second."""
    config = _config(directory)
    if (kind := str(config.get("tokenizer_class"))) not in _KNOWN:
        raise ValueError(
            f"its tokenizer ({kind}) is {FILE} and code of its own repository, which is never run; take a conversion "
            "that has a tokenizer.json"
        )
    of = _KNOWN[kind]
    tokenizer: tokenizers.Tokenizer = _Converter(str(directory / FILE), pattern=of.pattern).converted()
    first = tokenizer.get_vocab_size()
    named = config.get("added_tokens_decoder") or {}
    names = {int(number): str(token["content"]) for number, token in named.items()}
    ids = range(first, first + of.specials)
    tokens = [names.get(number, f"<|reserved_token_{number}|>") for number in ids]
    tokenizer.add_special_tokens([tokenizers.AddedToken(each, normalized=False, special=True) for each in tokens])
    wrong = [token for number, token in zip(ids, tokens, strict=True) if tokenizer.token_to_id(token) != number]
    if wrong or not names.keys() <= set(ids):
        raise ValueError(f"the special tokens in {_CONFIG} do not follow those of {FILE}")
    return tokenizer


class _Converter(TikTokenConverter):  # type: ignore[misc]
    """Without the package tiktoken."""

    @staticmethod
    def load_tiktoken_bpe(path: str) -> dict[bytes, int]:
        try:
            lines = [line.split() for line in Path(path).read_bytes().splitlines() if line.strip()]
            return {base64.b64decode(token, validate=True): int(rank) for token, rank in lines}
        except (binascii.Error, ValueError) as error:
            raise ValueError(f"{FILE} is damaged: {error}") from error


def _config(directory: Path) -> dict[str, Any]:
    try:
        found: Any = json.loads((directory / _CONFIG).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}

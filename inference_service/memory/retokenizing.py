"""A ledger's text under another tokenizer, the same bytes where its tokens can spell them."""

import re
from dataclasses import replace

from agentmem.kv.ledger import Ledger
from inference_service.text.tokenizer import Tokenizer

_NO_TEXT = re.compile("([\udc80-\udcff]+)")


def retokenized(ledger: Ledger, tokenizer: Tokenizer) -> Ledger:
    """Return a ledger without turns. Off the event loop. Special tokens stay special if known; bytes that no token
    spells become U+FFFD.
    """
    token_ids: list[int] = []
    start = 0
    ends = ledger.offsets.tolist()
    for begin, end in zip([0, *ends], ends, strict=False):
        if tokenizer.is_special(ledger.text[begin:end]):
            token_ids += _ordinary(ledger.text[start:begin], tokenizer)
            token_ids.append(tokenizer.special_id(ledger.text[begin:end].decode()))
            start = end
    token_ids += _ordinary(ledger.text[start:], tokenizer)
    again = Ledger().followed_by(token_ids, tokenizer.pieces(token_ids), tokenizer.hash)
    opening = ledger.text[: ledger.opening_bytes]
    return replace(again, opening_bytes=len(opening) if again.text.startswith(opening) else 0)


def _ordinary(text: bytes, tokenizer: Tokenizer) -> list[int]:
    token_ids: list[int] = []
    for number, part in enumerate(_NO_TEXT.split(text.decode(errors="surrogateescape"))):
        token_ids += _bytes(part.encode(errors="surrogateescape"), tokenizer) if number % 2 else _text(part, tokenizer)
    return token_ids


def _text(text: str, tokenizer: Tokenizer) -> list[int]:
    """SentencePiece's leading space is in the text already."""
    exact = tokenizer.encode(text, parse_special=False, continues=True)
    return exact if tokenizer.decode(exact) == text.encode() else tokenizer.encode(text, parse_special=False)


def _bytes(data: bytes, tokenizer: Tokenizer) -> list[int]:
    token_ids = [tokenizer.byte_ids.get(byte) for byte in data]
    found = [token_id for token_id in token_ids if token_id is not None]
    return found if len(found) == len(data) else _text(data.decode(errors="replace"), tokenizer)

"""Conversations by content: the hash chain of their messages, which finds the agent that has had one.

The worker computes it of what an agent was told and answered, whoever asks FindAgent of what it has at hand; so both
must say "the same message" of the same things, and here is what they say. A chain finds candidates; what is reused of
an agent's memory is compared by text.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any

HASH_BYTES = 16
_PERSON = b"agentmem.message"


def message_hashes(messages: Iterable[Mapping[str, Any]]) -> list[bytes]:
    """One hash per message, 16 bytes: of the hash before, the role, the text and what else the message says.

    Messages are JSON objects as chat templates take them. A content that is a list of text parts equals their text
    joined, no content equals an empty one, and a member that is null equals one that is not there.
    """
    chain: list[bytes] = []
    for message in messages:
        rest = {name: value for name, value in message.items() if name not in ("role", "content") and value is not None}
        parts = (chain[-1] if chain else b"", _role(message), _content(message.get("content")), _canonical(rest))
        state = hashlib.blake2b(digest_size=HASH_BYTES, person=_PERSON)
        for part in parts:
            state.update(len(part).to_bytes(8, "little") + part)
        chain.append(state.digest())
    return chain


def _role(message: Mapping[str, Any]) -> bytes:
    return str(message.get("role", "")).encode(errors="surrogatepass")


def _content(content: Any) -> bytes:
    if content is None:
        content = ""
    if isinstance(content, list) and all(
        isinstance(part, Mapping) and part.keys() == {"type", "text"} and part["type"] == "text" for part in content
    ):
        content = "".join(str(part["text"]) for part in content)
    return b"t" + content.encode(errors="surrogatepass") if isinstance(content, str) else b"j" + _canonical(content)


def _canonical(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode(errors="surrogatepass")

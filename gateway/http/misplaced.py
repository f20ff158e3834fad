"""Requests that missed the API because of their base URL, or speak another server's: what to set instead."""

import re
from typing import Final

_ENDPOINTS: Final = r"(chat/completions|completions|responses|messages(?:/count_tokens)?|models)"
_WITHOUT_V1: Final = re.compile(rf"/{_ENDPOINTS}")
_TWICE: Final = re.compile(rf"/v1(/v1)+/{_ENDPOINTS}")
_SLASH: Final = re.compile(rf"(/v1/{_ENDPOINTS})/+")


def advice(path: str) -> str:
    """Return what a client that asks for an unknown path may have meant, as a sentence; empty where nobody knows."""
    if path == "/api" or path.startswith("/api/"):
        return (
            "this is Ollama's API, which is not served; have the client speak OpenAI's, with the base URL "
            "http://HOST:PORT/v1"
        )
    if found := _WITHOUT_V1.fullmatch(path):
        return f"the base URL lacks /v1; this endpoint is /v1/{found[1]}"
    if found := _TWICE.fullmatch(path):
        return f"the base URL has /v1 once too often; this endpoint is /v1/{found[2]}"
    if found := _SLASH.fullmatch(path):
        return f"the path ends with a slash too many; this endpoint is {found[1]}"
    return ""

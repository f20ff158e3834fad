"""Bodies of REST requests, for the OpenAPI document. Each is tried by a test."""

from collections.abc import Mapping
from typing import Any, Final

_QUESTION: Final = {"messages": {"messages": [{"role": "user", "content": "Where is the key?"}]}}

EXAMPLES: Final[Mapping[str, dict[str, Any]]] = {
    "Generate": {"append": _QUESTION, "max_tokens": 50},
    "Prefill": {"append": {"text": "The key is in the cellar."}},
    "ForkAgent": {"new_agent_id": "polo"},
    "TrimAgent": {"keep_tokens": 4},
    "ProbeAgent": {"append": _QUESTION},
    "PrefetchAgent": {"tier": "hot"},
    "EvictAgent": {"tier": "hot"},
    "PinAgent": {"pinned": True},
    "SetAgentTtl": {"ttl": 86400, "delete_after": 2592000},
    "SetContextPolicy": {"context_policy": "summarize"},
    "CreateSnapshot": {"name": "before"},
    "RestoreSnapshot": {},
    "SetTurnHints": {"hints": [{"key": {"agent_id": "marco", "model_id": "demo"}, "steps": 1}]},
    "Abort": {"request_id": "0d6e1c7e"},
}
"""By RPC."""

"""Coding agents: their programs, and how each is told of a server for one run. Nothing of the user's is written."""

import json
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

from agentmem.console import Mistake
from agentmem.words import NAME_HEADER

KEY: Final = "AGENTMEM_LAUNCH_KEY"
NAME: Final = "AGENTMEM_LAUNCH_NAME"
"""Variables that settings of clients refer to."""

_PROVIDER: Final = "agentmem"
_MOST_OUTPUT: Final = 32_000


class Server(NamedTuple):
    """`url` is without /v1. `context` is the model's, in tokens. `name` is what X-Agent-Name has. Files of settings
    are in `folder`.
    """

    url: str
    key: str
    model: str
    context: int
    name: str
    folder: Path

    @property
    def output(self) -> int:
        """Tokens of the longest answer, for clients that leave room for it."""
        return min(_MOST_OUTPUT, self.context // 8)


@dataclass(frozen=True)
class Settings:
    """Words before the user's, variables, and files by their names."""

    words: tuple[str, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class CodingClient:
    """`context` is the least that it works in: its prompt, its tools, and some turns."""

    title: str
    program: str
    package: str
    context: int
    settings: Callable[[Server], Settings]

    @property
    def installation(self) -> str:
        return f"npm install -g {self.package}"


_ELSEWHERE: Final = (
    *("ANTHROPIC_API_KEY", "ANTHROPIC_SMALL_FAST_MODEL", "CLAUDE_CODE_OAUTH_TOKEN"),
    *("CLAUDE_CODE_USE_BEDROCK", "CLAUDE_CODE_USE_VERTEX", "CLAUDE_CODE_USE_FOUNDRY"),
)
"""Variables by which Claude Code would ask another server, or show it another key."""

_CREDENTIALS: Final = frozenset({"authorization", "proxy-authorization", "x-api-key"})

_COMPACTS: Final = 40_960
"""Tokens of context that hold Claude Code's prompt, and what it keeps free when it compacts by itself: 13,000 tokens
and an answer. In less it would compact at each turn.
"""


def _claude(server: Server) -> Settings:
    kinds = ("OPUS", "SONNET", "HAIKU")
    variables = {
        **dict.fromkeys(_ELSEWHERE, ""),
        "ANTHROPIC_BASE_URL": server.url,
        "ANTHROPIC_AUTH_TOKEN": server.key,
        "ANTHROPIC_MODEL": server.model,
        **{f"ANTHROPIC_DEFAULT_{kind}_MODEL": server.model for kind in kinds},
        "CLAUDE_CODE_SUBAGENT_MODEL": server.model,
        "CLAUDE_CODE_MAX_CONTEXT_TOKENS": str(server.context),
        "CLAUDE_CODE_MAX_OUTPUT_TOKENS": str(server.output),
        **({"DISABLE_AUTO_COMPACT": "1"} if server.context < _COMPACTS else {}),
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "ANTHROPIC_CUSTOM_HEADERS": "\n".join([*_users_headers(), f"{NAME_HEADER}: {server.name}"]),
    }
    # The user's own settings may have variables, too, which go before those of the process, and a program for the key.
    file, given = "settings.json", {"model": server.model, "env": variables, "apiKeyHelper": ""}
    return Settings(("--settings", str(server.folder / file)), variables, {file: json.dumps(given)})


def _users_headers() -> list[str]:
    """Return the user's headers without keys, which are another server's."""
    lines = os.environ.get("ANTHROPIC_CUSTOM_HEADERS", "").splitlines()
    return [line for line in lines if line and line.partition(":")[0].strip().lower() not in _CREDENTIALS]


def _codex(server: Server) -> Settings:
    provider = {
        "name": _PROVIDER,
        "base_url": f"{server.url}/v1",
        "wire_api": "responses",
        "env_key": KEY,
        "env_http_headers": {NAME_HEADER: NAME},
    }
    given = {
        "model": server.model,
        "model_provider": _PROVIDER,
        f"model_providers.{_PROVIDER}": provider,
        "model_context_window": server.context,
    }
    return Settings(words=tuple(word for name, value in given.items() for word in ("-c", f"{name}={_toml(value)}")))


_OPENCODE: Final = "OPENCODE_CONFIG_CONTENT"


def _opencode(server: Server) -> Settings:
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": "Agentmem",
        "options": {"baseURL": f"{server.url}/v1", "apiKey": server.key, "headers": {NAME_HEADER: server.name}},
        "models": {
            server.model: {"name": server.model, "limit": {"context": server.context, "output": server.output}},
        },
    }
    model = f"{_PROVIDER}/{server.model}"
    given = {
        "provider": {_PROVIDER: provider},
        "enabled_providers": [_PROVIDER],
        "model": model,
        "small_model": model,
        "agent": {name: {"model": model} for name in ("build", "plan")},  # the user's agents may have other models
        "share": "disabled",
        "autoupdate": False,
    }
    users = _parsed(_OPENCODE, os.environ.get(_OPENCODE, ""))
    return Settings(variables={_OPENCODE: json.dumps(_merged(users, given))})


def _pi(server: Server) -> Settings:
    model = {
        "id": server.model,
        "name": server.model,
        "reasoning": False,
        "input": ["text"],
        "contextWindow": server.context,
        "maxTokens": server.output,
        "cost": dict.fromkeys(("input", "output", "cacheRead", "cacheWrite"), 0),
    }
    provider = {
        "name": "Agentmem",
        "baseUrl": f"{server.url}/v1",
        "api": "openai-completions",
        "apiKey": KEY,
        "headers": {NAME_HEADER: NAME},
        "models": [model],
    }
    file = "agentmem.js"
    return Settings(
        words=("--extension", str(server.folder / file), "--provider", _PROVIDER, "--model", server.model),
        files={file: f"export default (pi) => pi.registerProvider({json.dumps(_PROVIDER)}, {json.dumps(provider)});\n"},
    )


_QWEN: Final = "QWEN_CODE_SYSTEM_SETTINGS_PATH"
_QWEN_SYSTEM: Final = (
    "/Library/Application Support/QwenCode/settings.json"
    if sys.platform == "darwin"
    else "/etc/qwen-code/settings.json"
)


def _qwen(server: Server) -> Settings:
    generation = {"contextWindowSize": server.context, "customHeaders": {NAME_HEADER: server.name}}
    model = {
        "id": server.model,
        "name": server.model,
        "envKey": KEY,
        "baseUrl": f"{server.url}/v1",
        "generationConfig": generation,
    }
    given = {
        "$version": 4,
        "security": {"auth": {"selectedType": "openai"}},
        "model": {"name": server.model},
        "modelProviders": {"openai": [model]},
        "privacy": {"usageStatisticsEnabled": False},
        "proxy": "",
    }
    file, system = "settings.json", Path(os.environ.get(_QWEN) or _QWEN_SYSTEM)
    try:
        users = _parsed(str(system), system.read_text(encoding="utf-8"))
    except FileNotFoundError:
        users = {}
    except (OSError, UnicodeError) as error:
        raise Mistake(f"{system} cannot be read: {error}") from error
    # The user's OPENAI_MODEL would go before the file's, and Qwen Code knows no NO_PROXY.
    variables = {_QWEN: str(server.folder / file), "OPENAI_MODEL": server.model, **dict.fromkeys(_PROXIES, "")}
    return Settings(variables=variables, files={file: json.dumps(_merged(users, given))})


_PROXIES: Final = ("HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy")


def _parsed(place: str, text: str) -> dict[str, Any]:
    """Raises Mistake."""
    try:
        found = json.loads(text or "{}")
    except ValueError as error:
        raise Mistake(f"{place}: {error}; `agentmem launch` adds to plain JSON, without comments") from error
    if not isinstance(found, dict):
        raise Mistake(f"{place}: is no JSON object")
    return found


def _merged(users: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    both = {name for name in users.keys() & given.keys() if isinstance(users[name], dict)}
    inner = {name: _merged(users[name], given[name]) for name in both if isinstance(given[name], dict)}
    return {**users, **given, **inner}


def _toml(value: object) -> str:
    """Return a value as TOML, whose strings and numbers are JSON's."""
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{json.dumps(name)} = {_toml(part)}' for name, part in value.items())}}}"
    return json.dumps(value)


CLIENTS: Final = {
    "claude": CodingClient("Claude Code", "claude", "@anthropic-ai/claude-code", 32_768, _claude),
    "codex": CodingClient("Codex CLI", "codex", "@openai/codex", 16_384, _codex),
    "opencode": CodingClient("opencode", "opencode", "opencode-ai", 16_384, _opencode),
    "pi": CodingClient("pi", "pi", "@mariozechner/pi-coding-agent", 8192, _pi),
    "qwen": CodingClient("Qwen Code", "qwen", "@qwen-code/qwen-code", 32_768, _qwen),
}

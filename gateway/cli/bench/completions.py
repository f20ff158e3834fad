"""One streamed chat completion over OpenAI's API by its client's clock: the same requests to every server.

Greedy; tokens that end a turn are never chosen, by `logit_bias`.
"""

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx2

Message = dict[str, str]
PATIENCE_SECONDS = 120.0
_NEVER = -100
_DONE = "[DONE]"


@dataclass
class Answer:
    """`first` and `seconds` are from `sent`, the beginning of the connection; `arrivals` of each text. `cached` are
    tokens of the prompt that the server reused, None where it does not say; `tiers` where Agentmem had them."""

    status: int = 0
    text: str = ""
    finish: str = ""
    done: bool = False
    sent: float = 0.0
    first: float = 0.0
    seconds: float = 0.0
    arrivals: list[float] = field(default_factory=list)
    prompt: int = 0
    generated: int = 0
    cached: int | None = None
    tiers: Mapping[str, int] = field(default_factory=dict)
    error: str = ""

    def problem(self, max_tokens: int) -> str:
        """Return what is wrong with an answer that should have so many tokens, or ""."""
        if self.error or self.status != httpx2.codes.OK:
            return self.error or f"HTTP {self.status}"
        if not self.text.strip():
            return "no text"
        if not self.done or self.finish != "length":
            return f"ended as {self.finish or 'nothing'}{'' if self.done else ', without [DONE]'}"
        if self.generated != max_tokens:
            return f"{self.generated} tokens instead of {max_tokens}"
        return ""

    def sample(self) -> dict[str, Any]:
        names = ("first", "seconds", "prompt", "generated", "cached")
        found = {name: getattr(self, name) for name in names}
        return {**found, **({"error": self.error} if self.error else {})}


class Client:
    def __init__(
        self, url: str, model: str, ends: Sequence[int], patience: float = PATIENCE_SECONDS, **more: Any
    ) -> None:
        """`more`: further fields of each request."""
        self._model, self._more = model, more
        self._bias = {str(token): _NEVER for token in ends}
        # mlx_lm.server closes each connection.
        limits = httpx2.Limits(max_connections=None, max_keepalive_connections=0)
        self._http = httpx2.AsyncClient(base_url=url, timeout=patience, limits=limits, trust_env=False)

    async def ask(self, messages: Sequence[Message], max_tokens: int, *, agent: str = "") -> Answer:
        body = {
            **{"model": self._model, "messages": messages, "max_tokens": max_tokens, "temperature": 0},
            **{"logit_bias": self._bias, "stream": True, "stream_options": {"include_usage": True}},
            **self._more,
        }
        answer = Answer(sent=time.monotonic())
        try:
            await self._read(body, answer, {"X-Agent-ID": agent} if agent else {})
        except (httpx2.HTTPError, ValueError, KeyError, TypeError) as error:
            answer.error = f"{type(error).__name__}: {error}"[:200]
        answer.seconds = time.monotonic() - answer.sent
        answer.first = answer.arrivals[0] - answer.sent if answer.arrivals else answer.seconds
        return answer

    async def look(self, path: str) -> Any:
        """Raises HTTPError."""
        return (await self._http.get(path)).raise_for_status().json()

    async def close(self) -> None:
        await self._http.aclose()

    async def _read(self, body: dict[str, Any], answer: Answer, headers: dict[str, str]) -> None:
        async def seen(event: str, _: Any) -> None:
            if event == "connection.connect_tcp.started":
                answer.sent = time.monotonic()

        where, extensions = "/v1/chat/completions", {"trace": seen}
        async with self._http.stream("POST", where, json=body, headers=headers, extensions=extensions) as response:
            answer.status = response.status_code
            if answer.status != httpx2.codes.OK:
                told = (await response.aread()).decode(errors="replace")
                answer.error = f"HTTP {answer.status}: {told}"[:200]
                return
            async for line in response.aiter_lines():
                if line.startswith("data:"):
                    _hear(answer, line.removeprefix("data:").strip())


def _hear(answer: Answer, data: str) -> None:
    if data == _DONE:
        answer.done = True
        return
    chunk = json.loads(data)
    if "error" in chunk:
        answer.error = str(chunk["error"])[:200]
        return
    for choice in chunk.get("choices") or ():
        delta = choice.get("delta") or {}
        if any(delta.get(name) for name in ("content", "reasoning", "reasoning_content")):
            answer.arrivals.append(time.monotonic())
            answer.text += delta.get("content") or ""
        answer.finish = choice.get("finish_reason") or answer.finish
    if report := chunk.get("agentmem"):
        answer.tiers = report["cached"]
    if usage := chunk.get("usage"):
        answer.prompt, answer.generated = usage["prompt_tokens"], usage["completion_tokens"]
        answer.cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")

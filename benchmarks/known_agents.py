"""Agents whose memory has exactly so many tokens, and their turns through the gateway, each proved to be what it is."""

from pathlib import Path
from typing import Any

from agentmem.v1 import types_pb2
from benchmarks.live import LiveStack
from benchmarks.prompts import Prompts, token_ids
from benchmarks.turns import Turn, check


class KnownAgents:
    def __init__(self, stack: LiveStack, prompts: Prompts, new_tokens: int) -> None:
        self.stack = stack
        self._prompts = prompts
        self._new_tokens = new_tokens
        self._made = 0

    async def cold(self, tokens: int) -> Turn:
        """Take a first turn with a prompt that nobody ever computed."""
        self._made += 1
        prompt = token_ids(tokens, f"cold {self._made}")
        return check(await self._ask("", token_ids=types_pb2.TokenIds(ids=prompt)), tokens, 1, 0)

    async def remember(self, agent: str, tokens: int) -> tuple[Turn, list[Path]]:
        """Make an agent with a memory of exactly `tokens` tokens; return its files, too."""
        before = self._files()
        prompt = token_ids(tokens - 1, agent)
        turn = await self._ask(agent, token_ids=types_pb2.TokenIds(ids=prompt))
        await self.stack.on_disk(agent)
        return check(turn, tokens - 1, 1, 0), sorted(self._files() - before)

    async def next_turn(self, agent: str, tier: str, tokens: int, *, settle: bool = True) -> Turn:
        """Take a turn whose memory comes from one tier; `settle`: return when all of it is on disk."""
        text = self._prompts.text(self._new_tokens, agent)
        turn = await self._ask(agent, append=types_pb2.Append(text=text))
        if settle:
            await self.stack.on_disk(agent)
        return check(turn, tokens + self._new_tokens, 1, tokens, (tier,))

    async def _ask(self, agent: str, **arguments: Any) -> Turn:
        return await self.stack.ask(agent, 1, sampling=types_pb2.Sampling(ignore_eos=True), **arguments)

    def _files(self) -> set[Path]:
        return set((self.stack.root / "data" / "blocks").rglob("*.safetensors"))

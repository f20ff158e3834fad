"""Agents whose client sends the whole conversation each turn, as tokens, and knows what each turn must reuse."""

from dataclasses import dataclass, field

from agentmem.v1 import inference_pb2, types_pb2
from benchmarks import prompts
from benchmarks.live import LiveStack
from benchmarks.turns import Turn

NOBODY = ""
"""The agent id that keeps nothing."""


@dataclass
class Conversation:
    """One agent's tokens as they are in its ledger. Agents of other names share nothing of theirs."""

    agent: str
    token_ids: list[int] = field(default_factory=list)

    def prompt(self, new: int) -> list[int]:
        """All that was said, and so many tokens more, which nobody has seen."""
        return [*self.token_ids, *prompts.token_ids(new, f"{self.agent}, from {len(self.token_ids)}")]

    def heard(self, prompt: list[int], turn: Turn) -> None:
        self.token_ids = [*prompt, *turn.token_ids]


async def ask(stack: LiveStack, agent: str, prompt: list[int], generated: int) -> Turn:
    """One turn with the whole prompt; of NOBODY all of it is computed."""
    policy = inference_pb2.CACHE_POLICY_KEEP if agent else inference_pb2.CACHE_POLICY_RECOMPUTE
    sampling = types_pb2.Sampling(ignore_eos=True)
    tokens = types_pb2.TokenIds(ids=prompt)
    return await stack.ask(agent, generated, token_ids=tokens, sampling=sampling, cache_policy=policy)

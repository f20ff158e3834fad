from collections.abc import Iterable

from agentmem.v1 import workflow_pb2
from agentmem.words import cached_tokens


class Totals:
    """Sums over a run's turns and listenings. Pure."""

    def __init__(self, events: Iterable[workflow_pb2.RunWorkflowResponse] = ()) -> None:
        self.sums = workflow_pb2.WorkflowTotals()
        self._ledgers: dict[str, int] = {}
        for event in events:
            self.add(event)

    def add(self, event: workflow_pb2.RunWorkflowResponse) -> None:
        """Count an event, and write the sums into it."""
        kind = event.WhichOneof("event")
        if kind not in ("agent_spoke", "agent_listened"):
            return
        step: workflow_pb2.AgentSpoke | workflow_pb2.AgentListened = getattr(event, kind)
        spoke = kind == "agent_spoke"
        noted = not spoke and bool(event.agent_listened.note)
        sums, prompt, reused = self.sums, step.usage.prompt_tokens, cached_tokens(step.usage)
        sums.turns += spoke
        sums.notes += noted
        sums.listenings += not (spoke or noted)
        sums.replayed += step.replayed
        sums.resent_tokens += prompt if spoke or noted else 0
        sums.prefilled_tokens += max(0, prompt - reused)
        sums.reused_tokens += reused
        if step.cache.miss_reason:
            sums.recomputed_tokens += max(0, min(self._ledgers.get(step.agent_id, 0), prompt) - reused)
        self._ledgers[step.agent_id] = prompt + step.usage.completion_tokens
        step.totals.CopyFrom(sums)

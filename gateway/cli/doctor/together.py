"""What the findings of two halves say together. Pure."""

from collections.abc import Iterator, Sequence

from agentmem.checkup import Finding, problem
from agentmem.sizes import byte_size


def together(findings: Sequence[Finding]) -> Iterator[Finding]:
    """Models of which not even one agent's KV would be kept on the disk."""
    limits = [limit for each in findings if isinstance(limit := each.facts.get("limit_bytes"), int)]
    if not limits:
        return
    for each in findings:
        needed = each.facts.get("agent_bytes")
        if isinstance(needed, int) and needed > limits[0]:
            room = f"the store takes no more than {byte_size(limits[0])}"
            found = f"an agent of 4,096 tokens takes {byte_size(needed)}, and {room}"
            advice = (
                "raise warm_bytes in [store] of the TOML file (AGENTMEM_STORE_WARM_BYTES), or make room on the disk"
            )
            yield problem(each.check, found, advice, facts={"agent_bytes": needed, "limit_bytes": limits[0]})

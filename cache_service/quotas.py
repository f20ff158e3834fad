"""How much a namespace may take, and what is said when that is all. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from agentmem.sizes import binary_size
from cache_service.usage import Usage


@dataclass(frozen=True)
class Quotas:
    """Bytes that each namespace may take, its own quota or everybody's; None is no quota.

    KV, ledgers and records of workflow runs together; what is said of ledgers here is said of the records, too.
    """

    everybody: int | None = None
    own: Mapping[str, int] = field(default_factory=dict)

    def of(self, namespace: str) -> int | None:
        """A namespace's quota."""
        return self.own.get(namespace, self.everybody)

    def excess(self, namespace: str, used: Usage) -> int:
        """How many bytes a namespace takes more than it may."""
        quota = self.of(namespace)
        return 0 if quota is None else max(0, used.total - quota)

    def has_room(self, namespace: str, ledger: int, held: int) -> bool:
        """Whether so many bytes of ledgers may be there, beside the KV that cannot be evicted."""
        quota = self.of(namespace)
        return quota is None or ledger + held <= quota

    def refusal_of_kv(self, namespace: str, used: Usage, held: int) -> str:
        """Why new KV is not kept, in words for the operator. `held` are bytes of pinned agents' KV."""
        return (
            f"{self._full(namespace, used, held)}; unpin or delete agents, delete workflow runs, or raise the quota"
            " (the turn is kept, its KV is not)"
        )

    def refusal_of_ledger(self, namespace: str, used: Usage, held: int) -> str:
        """Why a ledger may not grow, in words for the operator. `used` is what would be there."""
        return (
            f"{self._full(namespace, used, held)}; only KV is ever evicted; nothing was changed; delete agents or"
            " workflow runs, or raise the quota"
        )

    def _full(self, namespace: str, used: Usage, held: int) -> str:
        quota = self.of(namespace)
        assert quota is not None, "a namespace without a quota is never full"
        flag = "--namespaces" if namespace in self.own else "--namespace-bytes"
        return (
            f"the quota of namespace {namespace!r} is {binary_size(quota)} ({flag}), and it would take"
            f" {binary_size(used.total)}: {binary_size(used.ledger)} of ledgers and workflow records, and"
            f" {binary_size(used.kv)} of KV, of which {binary_size(held)} belong to pinned agents"
        )


NO_QUOTAS = Quotas()
"""Every namespace may take whatever the warm tier and the disk have."""

from agentmem.errors import DataLoss
from agentmem.validation import AgentKey


class LedgerDamaged(DataLoss):
    def __init__(self, what: str) -> None:
        super().__init__(
            f"{what} is damaged in store.db and is not served; stop the store and run `agentmem store check`, then"
            " restore the directory from a backup, or delete what is damaged"
        )


def of_agent(key: AgentKey) -> str:
    return f"the ledger of agent {key.agent_id!r} (model {key.model_id!r})"

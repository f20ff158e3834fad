"""An agent opened: the store's answer, with the ledger that memory has where the store does not send it again."""

from dataclasses import replace

from agentmem.kv.ledger import NO_VERSION
from agentmem.validation import AgentKey
from inference_service.models.loaded import LoadedModel
from inference_service.storage.client import Opened, StoreClient


async def opened(
    store: StoreClient, model: LoadedModel, key: AgentKey, request_id: str = "", *, peek: bool = False
) -> Opened:
    """Return the store's state of an agent. Hot state of another version goes, unless this only peeks or the request
    was committed before. Event loop; under the agent's lock, unless it peeks.
    """
    hot = model.memory.hot.get(key)
    found = await store.open(key, hot.version if hot is not None else NO_VERSION, request_id, peek=peek)
    if hot is not None and found.version == hot.version:
        return replace(found, ledger=hot.ledger)
    if not peek and found.turn is None:
        model.memory.hot.present(key, found.version)
    return found

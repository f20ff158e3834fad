"""How a model's KV is set up, agreed with the other machines of a cluster: the first that was found is everybody's.

A store that does not answer delays no load: the model serves with what was found here, and asks again at its next load.
Its KV is kept apart meanwhile by the fingerprint, which names the setup.
"""

from collections.abc import Awaitable, Callable

from inference_service.models.kv_setup import KVSetup, KVSetups
from inference_service.models.opening import ModelInfo

Share = Callable[[str, bytes], Awaitable[bytes | None]]
"""StoreClient.share_setup."""


async def nothing_shared(_name: str, _value: bytes) -> bytes:
    """Return what a single machine shares."""
    return b""


async def agreed(
    setups: KVSetups, share: Share, found: Callable[[], Awaitable[KVSetup]], fingerprint: str, info: ModelInfo
) -> KVSetup:
    """Return the setup of the machines that have loaded the model, if any have; else as `found`, which may measure."""
    name = setups.name(fingerprint, info)
    if shared := await share(name, b""):
        setups.adopt(fingerprint, info, shared)
        return await found()
    setup = await found()
    mine = setups.shared(setup, info)
    first = await share(name, mine)
    if not first or first == mine:
        return setup
    setups.adopt(fingerprint, info, first)  # another one was a moment faster
    return await found()

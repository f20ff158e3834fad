"""A model's KV setup, agreed with other machines of a cluster: the first wins.

If the store does not answer, the model serves with its own setup, which the fingerprint of its KV names, and asks at
the next load.
"""

from collections.abc import Awaitable, Callable

from inference_service.models.kv_setup import KVSetup, KVSetups
from inference_service.models.opening import ModelInfo

Share = Callable[[str, bytes], Awaitable[bytes | None]]
"""StoreClient.share_setup."""


async def nothing_shared(_name: str, _value: bytes) -> bytes:
    """Share nothing, on a single machine."""
    return b""


async def agreed(
    setups: KVSetups, share: Share, found: Callable[[], Awaitable[KVSetup]], fingerprint: str, info: ModelInfo
) -> KVSetup:
    """Return other machines' setup of the model, or `found`, which may measure."""
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

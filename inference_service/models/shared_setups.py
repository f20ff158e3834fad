"""How a model's KV is set up, agreed with the other machines of a cluster: the first that was found is everybody's.

A store that does not answer at a load delays none: the model serves with what was found here, and the store is asked
again until it has answered. Nobody mistakes the KV meanwhile, whose fingerprint names its setup. Where another machine
was first, its setup is taken as at a load, and the model is to be loaded again.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from agentmem.process import logs
from inference_service.models.kv_setup import KVSetup, KVSetups
from inference_service.models.opening import ModelInfo

log = logging.getLogger(__name__)

Share = Callable[[str, bytes], Awaitable[bytes | None]]
"""StoreClient.share_setup."""

_PAUSES_SECONDS: Final = (1.0, 60.0)
"""Before the store is asked again the first time, and at most."""


async def nothing_shared(_name: str, _value: bytes) -> bytes:
    """Of a single machine."""
    return b""


class SharedSetups:
    """Agrees. Event loop; `stop` once.

    `superseded` is called with the model_id of a model that serves with another setup than it should.
    """

    def __init__(self, setups: KVSetups, share: Share) -> None:
        self._setups = setups
        self._share = share
        self._asking: dict[str, asyncio.Task[None]] = {}
        self.superseded: Callable[[str], object] = lambda model_id: None  # noqa: ARG005

    async def of(self, found: Callable[[], Awaitable[KVSetup]], fingerprint: str, info: ModelInfo) -> KVSetup:
        """How KV is packed: as on the other machines, where there are any that have loaded the model, or as is `found`.

        `found` measures what is not known here.
        """
        name = self._setups.name(fingerprint, info)
        if (earlier := self._asking.pop(name, None)) is not None:
            earlier.cancel()
        if shared := await self._share(name, b""):
            self._setups.adopt(fingerprint, info, shared)
            return await found()
        setup = await found()
        mine = self._setups.shared(setup, info)
        first = await self._share(name, mine)
        if first is None:
            self._asking[name] = asyncio.create_task(self._share_later(name, mine, setup, fingerprint, info))
            return setup
        if first in (b"", mine):
            return setup
        self._setups.adopt(fingerprint, info, first)  # another one was a moment faster
        return await found()

    def stop(self) -> None:
        """Ask no more."""
        for task in self._asking.values():
            task.cancel()
        self._asking.clear()

    async def _share_later(self, name: str, mine: bytes, setup: KVSetup, fingerprint: str, info: ModelInfo) -> None:
        pause, longest = _PAUSES_SECONDS
        while True:
            await asyncio.sleep(pause)
            if (first := await self._share(name, mine)) is not None:
                break
            pause = min(2 * pause, longest)
        if self._asking.get(name) is asyncio.current_task():
            del self._asking[name]
        if first in (b"", mine):
            logs.event(log, "the model's setup is shared now", logging.INFO, model=info.model_id)
            return
        self._setups.adopt(fingerprint, info, first)
        if self._setups.differs(setup, fingerprint, info):
            message = "another machine was first with another setup of the model's KV; it is loaded again"
            logs.event(log, message, logging.WARNING, model=info.model_id)
            self.superseded(info.model_id)

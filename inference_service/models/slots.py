"""A registered model's state, users and waiters:

    REGISTERED, FAILED  start_loading  → LOADING
    LOADING             serve          → LOADED, waiters enter
    LOADING             call_off       → REGISTERED, all waiters left
    LOADING             fail           → FAILED, waiters get the error
    LOADED              drain          → DRAINING, to be unloaded
    DRAINING            reopen         → LOADED, called off
    DRAINING            unloaded       → REGISTERED

Event loop only.
"""

import asyncio
import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import Any

from agentmem.load_stages import LoadStage
from agentmem.process.models import RegisteredModel
from agentmem.v1 import model_pb2
from inference_service.models.fitting import Resident
from inference_service.models.loaded import LoadedModel, OpenedModel
from inference_service.models.opening import ModelInfo

State = model_pb2.ModelState


@dataclass(frozen=True)
class Progress:
    """`began` is the stage's, by time.monotonic."""

    stage: LoadStage = LoadStage.WAIT
    share: float = 0.0
    began: float = field(default=0.0, compare=False)

    @property
    def remaining(self) -> float | None:
        """Seconds for the rest of the stage at its speed so far."""
        if not 0 < self.share <= 1 or self.stage is LoadStage.WAIT:
            return None
        return (time.monotonic() - self.began) * (1 - self.share) / self.share


@dataclass(eq=False)
class ModelSlot:
    """`opened`, with open files, while it is ready to load. `wanted`: a request waits, or will retry.
    `measured`: it was, or failed to be, and does not serve before it is again.
    """

    registered: RegisteredModel
    state: model_pb2.ModelState.ValueType = State.MODEL_STATE_REGISTERED
    info: ModelInfo | None = None
    opened: OpenedModel | None = None
    loaded: LoadedModel | None = None
    error: str = ""
    users: int = 0
    wanted: bool = False
    waiters: list["asyncio.Future[LoadedModel]"] = field(default_factory=list)
    last_used: float = 0.0
    loaded_at: float = 0.0
    measured: bool = False
    called_off: int = 0
    progress: Progress = Progress()
    _reported: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def model_id(self) -> str:
        return self.registered.model_id

    @property
    def open(self) -> bool:
        """Requests may enter."""
        return self.state == State.MODEL_STATE_LOADED

    @property
    def idle_too_long(self) -> bool:
        ttl = self.registered.ttl
        idle = ttl is not None and self.open and not self.users and time.monotonic() - self.last_used > ttl
        return idle and self.loaded is not None and (self.loaded.setup.final or self.measured)

    def resident(self) -> Resident:
        """A model in use counts as used now."""
        assert self.loaded is not None
        last = time.monotonic() if self.users else self.last_used
        return Resident(self.model_id, self.loaded.taken_bytes, last, self.registered.pinned)

    # Users and waiters.

    def enter(self) -> LoadedModel:
        assert self.loaded is not None
        self.users += 1
        return self.loaded

    def leave(self) -> None:
        self.users -= 1
        self.last_used = time.monotonic()

    def refuse(self, error: Exception) -> None:
        for waiter in self._take_waiters():
            waiter.set_exception(error)

    def _take_waiters(self) -> list["asyncio.Future[LoadedModel]"]:
        waiters, self.waiters, self.wanted = self.waiters, [], False
        return [waiter for waiter in waiters if not waiter.done()]

    # States.

    def start_loading(self) -> None:
        self.state, self.error = State.MODEL_STATE_LOADING, ""
        self.report(LoadStage.WAIT, 0.0)

    def call_off(self) -> None:
        self.state, self.opened = State.MODEL_STATE_REGISTERED, None

    def fail(self, error: Exception) -> None:
        self.state, self.error, self.opened = State.MODEL_STATE_FAILED, str(error), None
        self.refuse(error)

    def serve(self, model: LoadedModel) -> None:
        self.loaded = model
        self.loaded_at = self.last_used = time.monotonic()
        self.reopen()

    def drain(self) -> None:
        self.state = State.MODEL_STATE_DRAINING
        self.report(LoadStage.WAIT, 0.0)

    def reopen(self) -> None:
        self.state = State.MODEL_STATE_LOADED
        for waiter in self._take_waiters():
            waiter.set_result(self.enter())

    def unloaded(self) -> None:
        self.loaded, self.state = None, State.MODEL_STATE_REGISTERED

    # Progress.

    def report(self, stage: LoadStage, share: float) -> None:
        began = self.progress.began if self.progress.stage is stage else time.monotonic()
        self.progress = Progress(stage, share, began)
        self.wake()

    def wake(self) -> None:
        self._reported.set()
        self._reported = asyncio.Event()

    async def follow(self, load: "asyncio.Future[Any]") -> AsyncGenerator[Progress]:
        """Yield the latest progress until `load` is done."""
        load.add_done_callback(lambda _: self.wake())
        last: Progress | None = None
        while not load.done():
            if self.progress is last:
                await self._reported.wait()
            else:
                last = self.progress
                yield last

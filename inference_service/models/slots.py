"""A registered model's slot: its state, users and waiters.

    REGISTERED, FAILED  start_loading  → LOADING     a request wants the model
    LOADING             serve          → LOADED      the waiters enter
    LOADING             call_off       → REGISTERED  all waiters left
    LOADING             fail           → FAILED      the waiters get the error
    LOADED              drain          → DRAINING    another model takes its place, or it is unloaded
    DRAINING            reopen         → LOADED      the drain was called off
    DRAINING            unloaded       → REGISTERED  it is out of memory

`swapping.Swapper` decides when. Event loop only.
"""

import asyncio
import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import Any

from agentmem.process.models import RegisteredModel
from agentmem.v1 import model_pb2
from inference_service.models.fitting import Resident
from inference_service.models.loaded import LoadedModel, OpenedModel
from inference_service.models.opening import ModelInfo

State = model_pb2.ModelState

WAIT = "wait"


@dataclass(frozen=True)
class Progress:
    """A load's stage, and progress in it from 0 to 1."""

    stage: str = WAIT
    share: float = 0.0


@dataclass(eq=False)
class ModelSlot:
    """One registered model. `opened` is set while it is ready to load, with open files. `wanted`: a request waits, or
    was told to retry.
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
    progress: Progress = Progress()
    _reported: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def model_id(self) -> str:
        return self.registered.model_id

    @property
    def open(self) -> bool:
        """Return whether requests may enter."""
        return self.state == State.MODEL_STATE_LOADED

    @property
    def idle_too_long(self) -> bool:
        """Return whether the unused model has exceeded its ttl."""
        ttl = self.registered.ttl
        return ttl is not None and self.open and not self.users and time.monotonic() - self.last_used > ttl

    def resident(self) -> Resident:
        """Return the loaded model's memory; a model in use counts as used now."""
        assert self.loaded is not None
        last = time.monotonic() if self.users else self.last_used
        return Resident(self.model_id, self.loaded.taken_bytes, last, self.registered.pinned)

    # Users and waiters.

    def enter(self) -> LoadedModel:
        """Use the loaded model until `leave`."""
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
        self.report(WAIT, 0.0)

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
        self.report(WAIT, 0.0)

    def reopen(self) -> None:
        self.state = State.MODEL_STATE_LOADED
        for waiter in self._take_waiters():
            waiter.set_result(self.enter())

    def unloaded(self) -> None:
        self.loaded, self.state = None, State.MODEL_STATE_REGISTERED

    # Progress.

    def report(self, stage: str, share: float) -> None:
        """Set the progress, and wake followers."""
        self.progress = Progress(stage, share)
        self.wake()

    def wake(self) -> None:
        self._reported.set()
        self._reported = asyncio.Event()

    async def follow(self, load: "asyncio.Future[Any]") -> AsyncGenerator[Progress]:
        """Yield progress until `load` is done, always the latest, so that slow readers skip steps."""
        load.add_done_callback(lambda _: self.wake())
        last: Progress | None = None
        while not load.done():
            if self.progress is last:
                await self._reported.wait()
            else:
                last = self.progress
                yield last

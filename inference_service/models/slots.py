"""A registered model's slot: its state, what is known of it, who uses it, and who waits for it.

    REGISTERED, FAILED  start_loading  → LOADING     a request wants the model
    LOADING             serve          → LOADED      the waiters enter
    LOADING             call_off       → REGISTERED  all waiters left
    LOADING             fail           → FAILED      the waiters get the error
    LOADED              drain          → DRAINING    another model takes its place, or it is unloaded
    DRAINING            reopen         → LOADED      the drain was called off
    DRAINING            unloaded       → REGISTERED  it is out of memory

`state` changes only in the methods of `ModelSlot`; `swapping.Swapper` decides when. Event loop only.
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
    """The stage of a load, and the share of it that is done, 0 to 1."""

    stage: str = WAIT
    share: float = 0.0


@dataclass(eq=False)
class ModelSlot:
    """One registered model. `opened` is set while it is ready to be loaded: it holds files open, and no weights.

    `wanted` is True while a request waits for the model, or was refused with a time to retry.
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
        """The model's name."""
        return self.registered.model_id

    @property
    def open(self) -> bool:
        """Whether requests may enter."""
        return self.state == State.MODEL_STATE_LOADED

    @property
    def idle_too_long(self) -> bool:
        """Whether the model serves, is unused, and has been so for longer than its ttl."""
        ttl = self.registered.ttl
        return ttl is not None and self.open and not self.users and time.monotonic() - self.last_used > ttl

    def resident(self) -> Resident:
        """The memory that the loaded model takes. A model in use counts as used just now."""
        assert self.loaded is not None
        last = time.monotonic() if self.users else self.last_used
        return Resident(self.model_id, self.loaded.taken_bytes, last, self.registered.pinned)

    # Users and waiters.

    def enter(self) -> LoadedModel:
        """Begin to use the loaded model; `leave` it afterwards."""
        assert self.loaded is not None
        self.users += 1
        return self.loaded

    def leave(self) -> None:
        """End a use of the model."""
        self.users -= 1
        self.last_used = time.monotonic()

    def refuse(self, error: Exception) -> None:
        """Fail all waiters."""
        for waiter in self._take_waiters():
            waiter.set_exception(error)

    def _take_waiters(self) -> list["asyncio.Future[LoadedModel]"]:
        waiters, self.waiters, self.wanted = self.waiters, [], False
        return [waiter for waiter in waiters if not waiter.done()]

    # States.

    def start_loading(self) -> None:
        """REGISTERED or FAILED → LOADING."""
        self.state, self.error = State.MODEL_STATE_LOADING, ""
        self.report(WAIT, 0.0)

    def call_off(self) -> None:
        """LOADING → REGISTERED: all waiters left."""
        self.state, self.opened = State.MODEL_STATE_REGISTERED, None

    def fail(self, error: Exception) -> None:
        """LOADING → FAILED; the waiters get the error."""
        self.state, self.error, self.opened = State.MODEL_STATE_FAILED, str(error), None
        self.refuse(error)

    def serve(self, model: LoadedModel) -> None:
        """LOADING → LOADED: the waiters enter."""
        self.loaded = model
        self.loaded_at = self.last_used = time.monotonic()
        self.reopen()

    def drain(self) -> None:
        """LOADED → DRAINING: no request may enter any more."""
        self.state = State.MODEL_STATE_DRAINING
        self.report(WAIT, 0.0)

    def reopen(self) -> None:
        """DRAINING → LOADED: the waiters enter."""
        self.state = State.MODEL_STATE_LOADED
        for waiter in self._take_waiters():
            waiter.set_result(self.enter())

    def unloaded(self) -> None:
        """DRAINING → REGISTERED: the model is out of memory."""
        self.loaded, self.state = None, State.MODEL_STATE_REGISTERED

    # Progress.

    def report(self, stage: str, share: float) -> None:
        """Set how far the load is, and wake those who follow it."""
        self.progress = Progress(stage, share)
        self.wake()

    def wake(self) -> None:
        """Have those who `follow` look again."""
        self._reported.set()
        self._reported = asyncio.Event()

    async def follow(self, load: "asyncio.Future[Any]") -> AsyncGenerator[Progress]:
        """The progress until `load` is done: always the latest, so a slow reader skips steps and nothing queues."""
        load.add_done_callback(lambda _: self.wake())
        last: Progress | None = None
        while not load.done():
            if self.progress is last:
                await self._reported.wait()
            else:
                last = self.progress
                yield last

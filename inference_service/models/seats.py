"""A registered model's place: what is known of it, whether it serves, who uses it and who waits for it."""

import asyncio
import time
from dataclasses import dataclass, field

from agentmem.models import RegisteredModel
from agentmem.v1 import model_pb2
from inference_service.models.loader import Opening
from inference_service.models.loading import LoadedModel
from inference_service.models.opening import Outline
from inference_service.models.residency import Resident

State = model_pb2.ModelState

WAIT, READY = "wait", "ready"


@dataclass(frozen=True)
class Progress:
    """What a load is at: its stage, and the share of that which is done."""

    stage: str
    share: float


@dataclass(eq=False)
class Seat:
    """Event loop only. `opening` is a model that is ready to be loaded; it holds files open, and no weights.

    `wanted` says that somebody waits for the model, or was told to come again: who merely left wants nothing.
    """

    registered: RegisteredModel
    state: model_pb2.ModelState.ValueType = State.MODEL_STATE_REGISTERED
    outline: Outline | None = None
    opening: Opening | None = None
    loaded: LoadedModel | None = None
    error: str = ""
    users: int = 0
    wanted: bool = False
    tickets: list["asyncio.Future[LoadedModel]"] = field(default_factory=list)
    last_used: float = 0.0
    loaded_at: float = 0.0
    progress: Progress = Progress(WAIT, 0.0)
    watchers: set["asyncio.Queue[Progress]"] = field(default_factory=set)

    @property
    def model_id(self) -> str:
        """Its name."""
        return self.registered.model_id

    @property
    def open(self) -> bool:
        """Requests may begin."""
        return self.state == State.MODEL_STATE_LOADED

    def resident(self) -> Resident:
        """What it takes; it must be loaded. Who is in use was used just now."""
        assert self.loaded is not None
        last = time.monotonic() if self.users else self.last_used
        return Resident(self.model_id, self.loaded.taken_bytes, last, self.registered.pinned)

    def enter(self) -> LoadedModel:
        """Begin to use the model, which is loaded. `leave` it afterwards."""
        assert self.loaded is not None
        self.users += 1
        return self.loaded

    def leave(self) -> None:
        """Use it no more."""
        self.users -= 1
        self.last_used = time.monotonic()

    def admit(self) -> None:
        """Let in all that wait."""
        tickets, self.tickets, self.wanted = self.tickets, [], False
        for ticket in tickets:
            if not ticket.done():
                ticket.set_result(self.enter())

    def refuse(self, error: Exception) -> None:
        """Send away all that wait."""
        tickets, self.tickets, self.wanted = self.tickets, [], False
        for ticket in tickets:
            if not ticket.done():
                ticket.set_exception(error)

    def tell(self, stage: str, share: float) -> None:
        """Tell those who watch how far the load is."""
        self.progress = Progress(stage, share)
        for watcher in self.watchers:
            watcher.put_nowait(self.progress)

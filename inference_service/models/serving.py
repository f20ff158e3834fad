"""Which models serve: requests enter them, wait for them, and so make them come and go.

A request for a model that is not loaded takes a ticket. Models with tickets are opened (fetched, checked, named), all
at once, and queue in the order in which that is done: who is still being downloaded holds up nobody. A model that must
go to make room takes no new requests, ends its running ones, has its agents' KV written, and gives its memory back.
Requests for it that come meanwhile take tickets in turn. So a model is in the queue once however many wait for it, all
of these enter together when it is loaded, and each waits for no more swaps than there are other models in the queue
before it. A model stays for a minimum of time, so that two clients in turn cannot spend the day with swaps.

No running request is ended for a swap. A request that has waited too long is sent away with a time to come again; the
swap goes on meanwhile, because it will come. If all who wanted the model have left by themselves, the swap is off.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager, suppress

from agentmem.errors import FailedPrecondition, NotFound, Unavailable
from agentmem.models import RegisteredModel
from inference_service.models.loading import LoadedModel
from inference_service.models.opening import Outline
from inference_service.models.seats import Progress, Seat
from inference_service.models.swapping import Swapper

_RETRY_SECONDS = 2.0


class Models:
    """The registered models, and who uses them. Event loop only."""

    def __init__(self, registered: Mapping[str, RegisteredModel], swapper: Swapper, wait: float) -> None:
        self.default = next(iter(registered))
        self.seats = {name: Seat(model) for name, model in registered.items()}
        self._swapper = swapper
        self._wait = wait

    async def start(self) -> LoadedModel:
        """Begin to serve, and load the default model. Raises what loading raises; the others are served even so."""
        self._swapper.start(self.seats.values())
        return await self._brought(self.seats[self.default])

    async def stop(self) -> None:
        """Load and unload no more. Those who wait are sent away."""
        await self._swapper.stop()
        for seat in self.seats.values():
            seat.refuse(Unavailable("the worker is shutting down"))

    @asynccontextmanager
    async def use(self, model_id: str) -> AsyncIterator[LoadedModel]:
        """The model, which stays loaded as long as the context lasts; waits for it where it is not.

        Raises NotFound for an unregistered one, Unavailable where it is not loaded in time, and what loading raises.
        """
        seat = self.seat(model_id)
        model = seat.enter() if seat.open else await self._ticket_in_time(seat)
        try:
            yield model
        finally:
            self._leave(seat)

    @asynccontextmanager
    async def hold(self, model_id: str) -> AsyncIterator[LoadedModel]:
        """The model, if it serves now. Raises FailedPrecondition where it does not: what asks is not worth a swap."""
        seat = self.seat(model_id)
        if not seat.open:
            raise FailedPrecondition(
                f"model {model_id!r} is not loaded, and this would load none; LoadModel does, and so does any turn"
            )
        model = seat.enter()
        try:
            yield model
        finally:
            self._leave(seat)

    def loaded(self, model_id: str) -> LoadedModel | None:
        """The model, if it is in memory at this moment."""
        seat = self.seats.get(model_id)
        return seat.loaded if seat else None

    @property
    def all_loaded(self) -> list[LoadedModel]:
        """Those in memory at this moment."""
        return [seat.loaded for seat in self.seats.values() if seat.loaded is not None]

    def seat(self, model_id: str) -> Seat:
        """A model's place. Raises NotFound for an unregistered one."""
        try:
            return self.seats[model_id]
        except KeyError:
            raise NotFound("model", model_id, f"registered are {', '.join(self.seats)}") from None

    async def outline(self, model_id: str) -> Outline:
        """What is known of a model without loading it. Raises FailedPrecondition where its files do not say it."""
        seat = self.seat(model_id)
        if seat.outline is None:
            seat.outline = await self._swapper.outline(seat)
        return seat.outline

    async def load(self, model_id: str) -> AsyncGenerator[Progress]:
        """Load the model, and tell how far it is, until it is there. Raises what loading raises."""
        seat = self.seat(model_id)
        if seat.open:
            return
        watcher: asyncio.Queue[Progress] = asyncio.Queue()
        seat.watchers.add(watcher)
        loading = asyncio.create_task(self._brought(seat))
        try:
            yield seat.progress
            async with aclosing(_until(loading, watcher)) as stages:
                async for stage in stages:
                    yield stage
            await loading
        finally:
            seat.watchers.discard(watcher)
            loading.cancel()
            await asyncio.wait([loading])

    async def unload(self, model_id: str) -> int:
        """Wait for the model's running requests, and unload it; bytes freed. A caller that leaves leaves it loaded."""
        return await self._swapper.unload(self.seat(model_id))

    async def _brought(self, seat: Seat) -> LoadedModel:
        """Wait until the model is loaded, and leave it."""
        model = seat.enter() if seat.open else await self._ticket(seat)
        self._leave(seat)
        return model

    async def _ticket_in_time(self, seat: Seat) -> LoadedModel:
        try:
            async with asyncio.timeout(self._wait):
                return await self._ticket(seat)
        except TimeoutError:
            if seat.open:  # It came at the last moment.
                return seat.enter()
            seat.wanted = True  # Who asked will come again.
            raise Unavailable(
                f"model {seat.model_id!r} is not loaded yet ({self._swapper.doing(seat)}); try again",
                retry_after=_RETRY_SECONDS,
            ) from None

    async def _ticket(self, seat: Seat) -> LoadedModel:
        """Wait until the model is entered. Who is cancelled gives the ticket back."""
        ticket: asyncio.Future[LoadedModel] = asyncio.get_running_loop().create_future()
        seat.tickets.append(ticket)
        self._swapper.want(seat)
        try:
            return await ticket
        except asyncio.CancelledError:
            if ticket.done() and not ticket.cancelled() and ticket.exception() is None:
                self._leave(seat)
            with suppress(ValueError):
                seat.tickets.remove(ticket)
            if not seat.tickets:
                seat.wanted = False
                self._swapper.changed()
            raise

    def _leave(self, seat: Seat) -> None:
        seat.leave()
        self._swapper.changed()


async def _until(loading: "asyncio.Task[LoadedModel]", watcher: "asyncio.Queue[Progress]") -> AsyncGenerator[Progress]:
    """What comes out of the queue until the task is done."""
    while not loading.done():
        coming = asyncio.ensure_future(watcher.get())
        try:
            await asyncio.wait({loading, coming}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            coming.cancel()
        if coming.done() and not coming.cancelled():
            yield coming.result()

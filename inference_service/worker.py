"""The worker, put together: engine, models, store client, turns, and the gRPC services over them."""

import asyncio
import logging

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from prometheus_client import CollectorRegistry

from agentmem import layout, logs, notify
from agentmem.channels import connect
from agentmem.errors import AgentmemError
from agentmem.hints import TurnHints
from agentmem.process_metrics import ProcessMetrics
from agentmem.server import GrpcServer
from agentmem.v1 import (
    agent_pb2,
    agent_pb2_grpc,
    cache_store_pb2,
    inference_pb2,
    inference_pb2_grpc,
    model_pb2,
    model_pb2_grpc,
)
from inference_service.engine.device import worth_restoring
from inference_service.engine.thread import EngineThread
from inference_service.memory.match import Limits
from inference_service.metrics import WorkerMetrics
from inference_service.models.loader import Loader
from inference_service.models.registry import registry
from inference_service.models.serving import Models
from inference_service.models.swapping import Swapper
from inference_service.portable.mover import Mover
from inference_service.servicers.servicer_agents import AgentServicer
from inference_service.servicers.servicer_inference import InferenceServicer
from inference_service.servicers.servicer_models import ModelServicer
from inference_service.settings import WorkerSettings
from inference_service.storage.choosing import Transfers
from inference_service.storage.client import StoreClient
from inference_service.turns.fetching import Fetcher
from inference_service.turns.keeping import Keeper
from inference_service.turns.locks import AgentLocks
from inference_service.turns.persisting import Persister
from inference_service.turns.prefetching import Prefetcher
from inference_service.turns.preparing import Preparer
from inference_service.turns.presence import Presence
from inference_service.turns.restoring import Restorer
from inference_service.turns.rooms import Rooms
from inference_service.turns.runner import TurnRunner

log = logging.getLogger(__name__)

_WATCH_SECONDS = 0.25
_STORE = "store"
_STORE_SERVICE = cache_store_pb2.DESCRIPTOR.services_by_name["CacheStoreService"].full_name
_NOBODY = notify.ServiceManager()


class Worker:
    """One worker process. `start`, then `stop` once; `failed` is set when it cannot go on and should exit."""

    def __init__(
        self, settings: WorkerSettings, metrics_registry: CollectorRegistry, manager: notify.ServiceManager = _NOBODY
    ) -> None:
        self._settings = settings
        registered = registry(settings.model, settings.adapter, settings.models)
        self._metrics = WorkerMetrics(metrics_registry, registered, namespace_label=settings.namespace_label)
        self._process = ProcessMetrics(metrics_registry, "worker", [_STORE])
        self._engine = EngineThread()
        self._metrics.engine_alive.set_function(lambda: self._engine.alive)
        self._channel = connect(settings.store_target)
        store = StoreClient(self._channel)
        self._transfers = Transfers(store, settings.store_transfer, self._metrics)
        locks, hints = AgentLocks(), TurnHints()
        least = settings.min_restore_tokens
        limits = Limits(least or Limits().min_tokens, settings.match_min_ratio)
        fetcher = Fetcher(store, self._transfers, self._metrics)
        restorer = Restorer(fetcher, self._metrics, least or worth_restoring())
        preparer = Preparer(restorer, store, limits, settings.default_max_tokens)
        self._persister = Persister(self._engine, store, self._transfers, self._metrics)
        self._broken = asyncio.Event()
        self._presence = Presence(self._persister, self._metrics, self._broken.set)
        loader = Loader(self._engine, settings, hints)
        swapper = Swapper(self._engine, loader, self._presence, settings.min_residency)
        self._models = Models(registered, swapper, settings.swap_wait)
        keeper, rooms = Keeper(self._engine, self._persister), Rooms(self._persister, settings.room_wait)
        prefetcher = Prefetcher(self._engine, store, restorer, keeper, rooms)
        self._runner = TurnRunner(
            self._models,
            self._engine,
            store,
            preparer,
            keeper,
            self._persister,
            rooms,
            self._metrics,
            locks=locks,
            hints=hints,
            max_requests=settings.max_requests,
            stream_buffer=settings.stream_buffer,
        )
        inference = InferenceServicer(self._runner, self._models, preparer, store)
        mover = Mover(store, fetcher, self._transfers, settings.data.expanduser() / "worker" / "portable")
        agents = AgentServicer(store, self._models, preparer, self._persister, prefetcher, locks, hints, mover)
        self._server = GrpcServer(
            settings.address,
            [
                (
                    inference_pb2.DESCRIPTOR.services_by_name["InferenceService"].full_name,
                    inference_pb2_grpc.add_InferenceServiceServicer_to_server,
                    inference,
                ),
                (
                    agent_pb2.DESCRIPTOR.services_by_name["AgentService"].full_name,
                    agent_pb2_grpc.add_AgentServiceServicer_to_server,
                    agents,
                ),
                (
                    model_pb2.DESCRIPTOR.services_by_name["ModelService"].full_name,
                    model_pb2_grpc.add_ModelServiceServicer_to_server,
                    ModelServicer(self._models, loader),
                ),
            ],
            metrics=self._process,
        )
        self._background: list[asyncio.Task[None]] = []
        self._manager = manager
        self.failed = asyncio.Event()

    @property
    def engine_alive(self) -> bool:
        """The engine thread runs; after `stop` it is in the middle of something long."""
        return self._engine.alive

    async def start(self) -> None:
        """Listen, load the default model, and report SERVING when a turn could run.

        Where the default model cannot be loaded the others are served; a request for it tries again.
        """
        await self._server.start()
        self._engine.start()
        logs.event(log, "listening", address=self._settings.address)
        self._manager.status("loading the model")
        try:
            await self._models.start()
        except AgentmemError as error:
            logs.event(log, "cannot load the default model", logging.ERROR, error=error.message)
        for work in (self._watch_health(), self._watch_engine(), self._watch_pools()):
            self._background.append(asyncio.create_task(work))

    async def stop(self) -> None:
        """NOT_SERVING, no new work, running turns get the grace, blocks are flushed, the engine ends.

        Also after a `start` that failed.
        """
        await _cancelled(self._background)
        await self._server.set_serving(False)
        await self._runner.drain(self._settings.grace)
        await self._models.stop()
        self._presence.close()
        await self._server.stop(layout.REFUSED_SECONDS)
        await self._engine.stop(layout.LAST_SECONDS)
        await self._channel.close(None)

    async def _watch_health(self) -> None:
        """Serving means: the engine lives and the store answers."""
        health = health_pb2_grpc.HealthStub(self._channel)
        serving: bool | None = None
        while True:
            alive, store = self._engine.alive, await _is_serving(health)
            self._process.answered(_STORE, store)
            if (alive and store) != serving:
                serving = alive and store
                if serving:
                    await self._find_transfer()
                await self._server.set_serving(serving)
                logs.event(log, "health", serving=serving, engine_alive=alive, store_answers=store)
                if serving:
                    self._manager.ready("serving")
                else:
                    self._manager.status("the cache store does not answer" if alive else "the engine has died")
            await asyncio.sleep(_WATCH_SECONDS)

    async def _find_transfer(self) -> None:
        try:
            await self._transfers.refresh()
        except AgentmemError as error:
            logs.event(log, "it is not known yet how files of KV travel", logging.WARNING, error=error.message)

    async def _watch_engine(self) -> None:
        await self._engine.died.wait()
        await self._give_up()

    async def _watch_pools(self) -> None:
        await self._broken.wait()
        await self._give_up()

    async def _give_up(self) -> None:
        await self._server.set_serving(False)
        await asyncio.sleep(self._settings.engine_death_exit)
        self.failed.set()


async def _is_serving(health: "health_pb2_grpc.HealthStub") -> bool:
    try:
        answer = await health.Check(health_pb2.HealthCheckRequest(service=_STORE_SERVICE), timeout=1)
    except grpc.aio.AioRpcError:
        return False
    return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)


async def _cancelled(tasks: list["asyncio.Task[None]"]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)

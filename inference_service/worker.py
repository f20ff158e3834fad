"""The worker, put together."""

import asyncio
import logging
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from prometheus_client import CollectorRegistry

from agentmem import layout
from agentmem.channels import connect
from agentmem.errors import AgentmemError
from agentmem.kv.hints import TurnHints
from agentmem.process import logs, service
from agentmem.process.grpc_metrics import ProcessMetrics
from agentmem.process.health_changes import HealthChanges
from agentmem.process.server import GrpcServer
from agentmem.v1 import agent_pb2, cache_store_pb2, inference_pb2, model_pb2
from agentmem.v1.agent_pb2_grpc import add_AgentServiceServicer_to_server
from agentmem.v1.inference_pb2_grpc import add_InferenceServiceServicer_to_server
from agentmem.v1.model_pb2_grpc import add_ModelServiceServicer_to_server
from inference_service.engine.device import worth_restoring
from inference_service.engine.thread import EngineThread
from inference_service.hub.searching import HubSearch
from inference_service.memory.match import MatchLimits
from inference_service.memory.speeds import Speeds
from inference_service.metrics import WorkerMetrics
from inference_service.models.loading import Loader
from inference_service.models.pulled import PulledModels
from inference_service.models.serving import Models
from inference_service.models.sources import registry
from inference_service.models.wiring import check_wired
from inference_service.portable.exporting import Exporter
from inference_service.portable.importing import Importer
from inference_service.servicers.agents import AgentServicer
from inference_service.servicers.inference import InferenceServicer
from inference_service.servicers.models import ModelServicer
from inference_service.servicers.portable import PortableAgents
from inference_service.settings import WorkerSettings
from inference_service.storage.client import StoreClient
from inference_service.storage.transport import disk_problem
from inference_service.threads import WorkerThreads
from inference_service.turns.keeping_warm import KeepWarm
from inference_service.turns.locks import AgentLocks
from inference_service.turns.persisting import Persister
from inference_service.turns.planning import TurnPlanner
from inference_service.turns.pool_writer import PoolWriter
from inference_service.turns.prefetching import Prefetcher
from inference_service.turns.presence import Presence
from inference_service.turns.restoring import Restorer
from inference_service.turns.runner import TurnRunner
from inference_service.turns.summarizing import Summarizer
from inference_service.turns.turn_log import TurnLog

log = logging.getLogger(__name__)


def _name(proto: Any, service: str) -> str:
    return str(proto.DESCRIPTOR.services_by_name[service].full_name)


EXIT_SECONDS = 5.0
"""NOT_SERVING lasts so long after a bug, before the process ends to be restarted; a lost device leaves nothing to look
at.
"""
_STORE = "store"
_STORE_SERVICE = _name(cache_store_pb2, "CacheStoreService")
_NOBODY = service.ServiceManager()


class Worker:
    """`start`, then `stop` once; `failed` is set if it should exit."""

    def __init__(
        self, settings: WorkerSettings, metrics_registry: CollectorRegistry, manager: service.ServiceManager = _NOBODY
    ) -> None:
        check_wired(settings.wired)
        self._settings = settings
        pulled = PulledModels(settings.data_directory / "worker" / "pulled.json")
        registered = pulled.beside(registry(settings.model, settings.adapter, settings.models))
        self._metrics = WorkerMetrics(metrics_registry, registered, namespace_label=settings.namespace_label)
        self._process = ProcessMetrics(metrics_registry, "worker", [_STORE])
        self._engine = EngineThread()
        self._metrics.engine_alive.set_function(lambda: self._engine.alive)
        self._channel = connect(settings.store_target)
        self._store = store = StoreClient(self._channel)
        self._threads = WorkerThreads()
        locks, hints = AgentLocks(), TurnHints()
        least = settings.min_restore_tokens
        limits = MatchLimits(least) if least else MatchLimits()
        speeds = Speeds()
        restorer = Restorer(store, self._metrics, least or worth_restoring(), speeds, self._engine)
        planner = TurnPlanner(store, self._threads, limits, settings.default_max_tokens)
        persister = Persister(self._engine, store, self._metrics)
        self._pool_broken = asyncio.Event()
        presence = Presence(persister, self._metrics, self._pool_broken)
        loader = Loader(self._engine, settings, hints, store.share_setup)
        self._metrics.wired_limit.set_function(lambda: loader.wiring.limit)
        self._models = Models(
            registered,
            self._engine,
            loader,
            presence,
            swap_wait=settings.swap_wait,
            min_residency=settings.min_residency,
        )
        self._metrics.memory_pressure.set_function(lambda: self._models.pressure.level)
        pool_writer = PoolWriter(self._engine, self._threads, persister)
        self._runner = TurnRunner(
            self._models,
            self._engine,
            self._threads,
            store,
            planner,
            Summarizer(self._engine, self._threads, planner, restorer),
            restorer,
            pool_writer,
            persister,
            TurnLog(self._metrics, settings.max_requests),
            locks=locks,
            hints=hints,
            max_requests=settings.max_requests,
        )
        self._keep_warm = KeepWarm(self._engine, settings.keep_warm, lambda: self._runner.busy)
        self._runner.turn_ended = self._keep_warm.turn_ended
        inference = InferenceServicer(self._runner, self._models, planner, store, self._threads)
        prefetcher = Prefetcher(self._engine, self._threads, store, restorer, pool_writer, self._metrics)
        self._hub = HubSearch(self._engine, settings)
        models = ModelServicer(self._models, loader, self._hub, pulled)
        portable = PortableAgents(
            self._models, persister, locks, Exporter(store, restorer), Importer(store), loader.calibrations
        )
        agents = AgentServicer(store, self._models, planner, restorer, persister, prefetcher, locks, hints, portable)
        self._server = GrpcServer(
            settings.address,
            [
                (_name(inference_pb2, "InferenceService"), add_InferenceServiceServicer_to_server, inference),
                (_name(agent_pb2, "AgentService"), add_AgentServiceServicer_to_server, agents),
                (_name(model_pb2, "ModelService"), add_ModelServiceServicer_to_server, models),
            ],
            metrics=self._process,
            asked=self._asked,
        )
        self._background: list[asyncio.Task[None]] = []
        self._changes: HealthChanges | None = None
        self._manager = manager
        self._problem = "it is starting"
        self.failed = asyncio.Event()

    @property
    def engine_alive(self) -> bool:
        return self._engine.alive

    @property
    def status(self) -> int:
        """The process's, by `agentmem.process.service`."""
        if not self.failed.is_set():
            return 0
        return service.DEVICE_LOST if self._engine.lost else service.BUG

    async def start(self) -> None:
        """Listen, load the default model, and report SERVING. Other models are served even if that fails; a request
        tries again.
        """
        self._threads.install()
        await self._server.start()
        self._engine.start()
        logs.event(log, "listening", address=self._settings.address)
        self._problem = "it is loading its model"
        self._manager.status("loading the model")
        try:
            await self._models.start()
        except AgentmemError as error:
            logs.event(log, "cannot load the default model", logging.ERROR, error=error.message)
        for work in (self._watch_health(), self._watch(self._engine.died), self._watch(self._pool_broken)):
            self._background.append(asyncio.create_task(work))

    async def stop(self) -> None:
        """Stop after grace for running turns; also after a failed `start`."""
        for task in self._background:
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)
        self._problem = "it is shutting down"
        await self._server.set_serving(False)
        await self._runner.drain(self._settings.grace)
        self._keep_warm.stop()
        self._hub.stop()
        await self._models.stop()
        await self._server.stop(layout.REFUSED_SECONDS)
        await self._engine.stop(layout.LAST_SECONDS)
        self._threads.close()
        await self._channel.close(None)

    async def _watch_health(self) -> None:
        """Serving: the engine lives, the store answers, and its files are here."""
        health = health_pb2_grpc.HealthStub(self._channel)
        self._changes = HealthChanges((self._channel, _STORE_SERVICE))
        said: str | None = None
        try:
            while True:
                store = await _is_serving(health)
                self._process.answered(_STORE, store)
                problem = "" if store else "the cache store does not answer"
                if not self._engine.alive:
                    problem = self._failure
                elif store and said != "":  # A store that has come back may be on another disk.
                    problem = await self._disk_problem()
                if problem != said:
                    said = problem
                    await self._say(problem)
                await self._changes.wait(soon=bool(problem) or not store)
        finally:
            await self._changes.close()

    async def _say(self, problem: str) -> None:
        self._problem = problem
        await self._server.set_serving(not problem)
        logs.event(log, "health", logging.WARNING if problem else logging.INFO, serving=not problem, problem=problem)
        if problem:
            self._manager.status(problem)
        else:
            self._manager.ready("serving")

    @property
    def _failure(self) -> str:
        return f"{'its GPU' if self._engine.lost else 'it'} has failed, and it is started again"

    def _asked(self) -> str:
        if self._changes is not None:  # a store that hangs reports no change
            self._changes.asked()
        return self._problem

    async def _disk_problem(self) -> str:
        try:
            return await disk_problem(self._store)
        except AgentmemError as error:
            return error.message

    async def _watch(self, broken: asyncio.Event) -> None:
        """Report NOT_SERVING and then `failed`."""
        await broken.wait()
        self._problem = self._failure
        await self._server.set_serving(False)
        if self._changes is not None:
            self._changes.wake()
        await asyncio.sleep(0.0 if self._engine.lost else EXIT_SECONDS)
        self.failed.set()


async def _is_serving(health: "health_pb2_grpc.HealthStub") -> bool:
    try:
        answer = await health.Check(health_pb2.HealthCheckRequest(service=_STORE_SERVICE), timeout=1)
    except grpc.aio.AioRpcError:
        return False
    return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)

"""Models' arrivals and departures, for KV, metrics and the log."""

import asyncio
import logging
from collections.abc import Callable

import mlx.core as mx
from prometheus_client import Gauge

from agentmem.kv.blockfile import BLOCK_TOKENS
from agentmem.process import logs
from inference_service.metrics import WorkerMetrics
from inference_service.models.loaded import LoadedModel
from inference_service.turns.persisting import Persister

log = logging.getLogger(__name__)


class Presence:
    """A `models.swapping.ModelListener`. Event loop only. `broken` is set when a pool's bookkeeping fails."""

    def __init__(self, persister: Persister, metrics: WorkerMetrics, broken: asyncio.Event) -> None:
        self._persister = persister
        self._metrics = metrics
        self._broken = broken
        metrics.mlx_memory.labels("active").set_function(mx.get_active_memory)
        metrics.mlx_memory.labels("peak").set_function(mx.get_peak_memory)
        metrics.mlx_memory.labels("cache").set_function(mx.get_cache_memory)

    def registered(self, model_id: str) -> None:
        self._metrics.register(model_id)

    def arrived(self, model: LoadedModel, seconds: float) -> None:
        memory, metrics, bits = model.memory, self._metrics, str(model.geometry.format)
        memory.pool.broken = self._broken
        memory.admission.last_resort = lambda: self._persister.give_up(model)
        memory.in_flight = lambda: self._persister.tables(model)
        memory.admission.growth.evicted = metrics.evictions.labels(model.model_id, "hot", "capacity").inc
        steps = {kind: metrics.engine_steps.labels(kind) for kind in ("prefill", "decode")}
        memory.evicted = metrics.evictions.labels(model.model_id, "hot", "request").inc
        model.engine.stepped = lambda kind: steps[kind].inc()
        model.engine.speculated = metrics.speculation(model.model_id)
        for gauge, labels, read in self._gauges(model):
            gauge.labels(*labels).set_function(read)
        metrics.model_info.labels(model.model_id, bits).set(1)
        metrics.model_loads.labels(model.model_id, "loaded").inc()
        metrics.model_load_seconds.observe(seconds)
        if model.quality is not None and model.quality.recommended != bits:
            level = logging.INFO if model.quality.is_good(bits) else logging.WARNING
            logs.event(log, "KV bits", level, model=model.model_id, verdict=model.quality.verdict(bits))
        logs.event(
            log,
            "model loaded",
            model=model.model_id,
            architecture=model.architecture,
            dtype=model.geometry.dtype_name,
            kv_bits=bits,
            context=model.context_length,
            seconds=round(seconds, 2),
            weight_bytes=model.weight_bytes,
            activation_bytes=model.activation_bytes,
            kv_bytes_per_token=model.geometry.bytes_per_token,
            pool_tokens=memory.sizes.space.blocks * BLOCK_TOKENS,
            pool_bytes=memory.sizes.pool_bytes(model.geometry),
            batch_bytes=memory.sizes.batch_bytes,
            attention=[f"{report.phase}: {report.path}" for report in model.paths],
        )

    async def leaving(self, model: LoadedModel, seconds: float) -> None:
        await self._persister.leave(model, seconds)
        agents = len(model.memory.hot)
        for key in list(model.memory.hot):
            model.memory.hot.drop(key)
        if agents:
            self._metrics.evictions.labels(model.model_id, "hot", "unload").inc(agents)
        model.memory.pool.broken = asyncio.Event()
        model.memory.admission.last_resort, model.memory.in_flight = _nothing, list  # They held the model.
        for gauge, labels, _ in self._gauges(model):  # They hold the model.
            gauge.remove(*labels)

    def left(self, model: LoadedModel, reason: str) -> None:
        self._metrics.model_info.remove(model.model_id, str(model.geometry.format))
        self._metrics.model_unloads.labels(model.model_id, reason).inc()

    def failed(self, model_id: str) -> None:
        self._metrics.model_loads.labels(model_id, "failed").inc()

    def _gauges(self, model: LoadedModel) -> list[tuple[Gauge, tuple[str, ...], Callable[[], float]]]:
        """Return a loaded model's series; they are read on another thread."""
        metrics, model_id = self._metrics, model.model_id
        hot, pool, engine = model.memory.hot, model.memory.pool.full, model.engine
        return [
            (metrics.hot_agents, (model_id, "hot"), lambda: len(hot)),
            (metrics.pool_blocks, (model_id, "free"), lambda: pool.capacity - pool.used),
            (metrics.pool_blocks, (model_id, "used"), lambda: pool.used),
            (metrics.cache_usage, (model_id,), lambda: pool.used / max(1, pool.capacity)),
            (metrics.batch_size, (model_id,), lambda: engine.running),
        ]


def _nothing() -> None:
    """Have nothing to give up."""

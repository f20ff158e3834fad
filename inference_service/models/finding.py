"""Finds models: fetches and opens them, and says whether they fit in memory.

Files are read on threads, MLX runs in short calls on the engine thread.
"""

import asyncio
import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any, TypeVar

from agentmem.errors import FailedPrecondition, Unavailable
from agentmem.kv.bits import AUTO, KVBits
from agentmem.load_stages import LoadStage
from agentmem.process.models import RegisteredModel
from inference_service.engine.attention import AttentionBackend
from inference_service.engine.device import obtainable_bytes, share_bytes
from inference_service.engine.network import Network
from inference_service.engine.thread import EngineThread
from inference_service.models.capability import QuantizationSettings
from inference_service.models.fingerprint import ContentHashes, file_identities, model_fingerprint
from inference_service.models.fitting import (
    Fit,
    KVLimits,
    MemoryLimits,
    Needs,
    Resident,
    Sized,
    fit,
    kv_bytes,
    needs_of,
)
from inference_service.models.opening import ModelInfo, ModelSpec, ModelText, open_network, open_text, shape_of
from inference_service.models.sources import fetch, fetch_description
from inference_service.pool.memory import Sizes
from inference_service.settings import WorkerSettings

_T = TypeVar("_T")

ReportProgress = Callable[[LoadStage, float], object]
"""Called with a load's stage and share."""

_DOWNLOADS = 64
"""On threads of their own: they may take hours."""
_FILE_THREADS = 4
_FRESH_SECONDS = 0.05
"""Free memory is measured that seldom."""
ATTENTION = AttentionBackend()
"""Installed in mlx-lm's modules, so one for the process."""


class NotFetched(FailedPrecondition):
    """A hub's model that could be fetched."""


def quantization_of(settings: WorkerSettings, registered: RegisteredModel | None = None) -> QuantizationSettings:
    bits = (registered and registered.kv_bits) or settings.kv_bits
    group_size = (registered and registered.kv_group_size) or settings.kv_group_size
    return QuantizationSettings(None if bits == AUTO else KVBits.parse(bits), group_size)


class Finder:
    """Event loop only."""

    def __init__(self, engine: EngineThread, settings: WorkerSettings) -> None:
        self._engine = engine
        self._settings = settings
        self._hashes = ContentHashes(settings.data_directory / "worker" / "weights.json")
        self._hashing = asyncio.Lock()
        self._texts: dict[str, tuple[object, ModelText]] = {}
        self._downloads = ThreadPoolExecutor(_DOWNLOADS, "fetch")
        self._files = ThreadPoolExecutor(_FILE_THREADS, "model-files")
        self._stopped = False
        self._obtainable, self._looked = 0, -math.inf

    @property
    def limits(self) -> MemoryLimits:
        """The memory for all models, in total and free now."""
        return MemoryLimits(share_bytes(), self._settings.loaded_models, self._obtainable_bytes())

    def stop(self) -> None:
        """Cancel downloads, which would delay the end."""
        self._stopped = True
        self._downloads.shutdown(wait=False, cancel_futures=True)
        self._files.shutdown(wait=False, cancel_futures=True)

    async def info(self, registered: RegisteredModel) -> ModelInfo:
        """Return what is known without fetching weights; a hub's config.json may refuse the model. Raises
        FailedPrecondition, NotFetched, Unavailable.
        """
        if await self._must_be_fetched(registered):
            raise NotFetched(
                f"model {registered.model_id!r} is not on this machine yet; load it (`agentmem models load`), which "
                "fetches it, and so does its first turn"
            )
        info, _ = await self._open(registered, lambda _stage, _share: None, offline=True)
        return self._with_fitting_context(info)

    async def fetch(self, registered: RegisteredModel, report: ReportProgress) -> None:
        """Download a model unless it is here. Raises FailedPrecondition and Unavailable."""
        await self._must_be_fetched(registered)
        await self._fetch(registered, report, self._settings.offline)

    def needs(self, info: ModelInfo) -> Needs:
        return needs_of(info, info.context_length, share_bytes(), self._settings.pool_bytes)

    def _fit(self, model: Sized, context_length: int | None = None) -> Fit:
        given = replace(KVLimits.of(self._settings), context_length=context_length)
        return fit(model, MemoryLimits(share_bytes(), self._settings.loaded_models), given)

    def _with_fitting_context(self, info: ModelInfo) -> ModelInfo:
        if info.spec.context_length is not None:
            return info
        return replace(info, context_length=self._fit(info).context_length)

    def sizes(self, info: ModelInfo, needs: Needs, residents: Sequence[Resident]) -> Sizes:
        share = kv_bytes(needs, residents, self.limits)
        return KVLimits.of(self._settings).sizes(share, info.geometry, info.context_length)

    def _obtainable_bytes(self) -> int:
        return obtainable_bytes(self._settings.free_memory_floor)

    def _lately_obtainable_bytes(self) -> int:
        """Cache for turns that begin together: a GPU's driver takes 1 ms with the interpreter's lock."""
        if (now := monotonic()) - self._looked > _FRESH_SECONDS:
            self._obtainable, self._looked = self._obtainable_bytes(), now
        return self._obtainable

    async def _must_be_fetched(self, registered: RegisteredModel) -> bool:
        """Raises FailedPrecondition if the model could not run."""
        if self._settings.offline:
            return False
        loop = asyncio.get_running_loop()
        hub = await loop.run_in_executor(self._downloads, fetch_description, registered.source)
        if hub is None:
            return False
        of = registered.model_id, *hub, ATTENTION, quantization_of(self._settings, registered)
        shape = await self._engine.call(lambda: shape_of(*of))
        if refusal := self._fit(shape, registered.context_length or self._settings.context_length).refusal:
            raise FailedPrecondition(refusal)
        return True

    async def _open(
        self, registered: RegisteredModel, report: ReportProgress, *, offline: bool
    ) -> tuple[ModelInfo, Network]:
        spec = await self._fetch(registered, report, offline)
        text = await self._on_file_thread(self._text, spec)
        return await self._engine.call(lambda: open_network(spec, text, ATTENTION))

    async def _fetch(self, registered: RegisteredModel, report: ReportProgress, offline: bool) -> ModelSpec:
        loop, settings = asyncio.get_running_loop(), self._settings
        left = False

        def fetched(share: float) -> None:
            if self._stopped:
                raise Unavailable("the worker is shutting down")
            if left:
                raise Unavailable("nobody waits for the download any more")
            loop.call_soon_threadsafe(report, LoadStage.FETCH, share)

        work = partial(fetch, registered.source, offline=offline, progress=fetched)
        try:
            directory = await loop.run_in_executor(self._downloads, work)
        except asyncio.CancelledError:
            left = True  # read by the download's thread
            raise
        return ModelSpec(
            model_id=registered.model_id,
            directory=directory,
            adapter=Path(registered.adapter) if registered.adapter else None,
            dtype=settings.dtype,
            quantization=quantization_of(settings, registered),
            context_length=registered.context_length or settings.context_length,
        )

    def _text(self, spec: ModelSpec) -> ModelText:
        """Reopen a text after changes only: swaps would wait for the tokenizer. File thread."""
        files = spec, file_identities(spec)
        known = self._texts.get(spec.model_id)
        if known is None or known[0] != files:
            self._texts[spec.model_id] = known = files, open_text(spec)
        return known[1]

    async def _fingerprint(self, info: ModelInfo) -> str:
        async with self._hashing:
            return await self._on_file_thread(model_fingerprint, info.spec, info.geometry.dtype_name, self._hashes)

    async def _on_file_thread(self, function: Callable[..., _T], *arguments: Any) -> _T:
        return await asyncio.get_running_loop().run_in_executor(self._files, function, *arguments)

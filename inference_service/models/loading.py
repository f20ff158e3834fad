"""Loading a model, in steps between which other streams continue.

    fetch → open (tokenizer, network, fingerprint) → read the weights, piece by piece → prove attention
          → measure quality and activations → take the memory for KV

Files are read on threads, MLX runs in short calls on the engine thread. Failures leave garbage only.
"""

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any, TypeVar

from agentmem.errors import FailedPrecondition, Unavailable
from agentmem.kv.bits import AUTO, KVBits
from agentmem.kv.hints import TurnHints
from agentmem.load_stages import LoadStage
from agentmem.process import logs
from agentmem.process.models import RegisteredModel
from inference_service.engine.activations import Activations, with_measured_states
from inference_service.engine.attention import AttentionBackend
from inference_service.engine.calibration import Calibrations
from inference_service.engine.computing import Cost, EstimatedCost, MeasuredCost
from inference_service.engine.device import obtainable_bytes, on_cpu, share_bytes
from inference_service.engine.network import Network
from inference_service.engine.product_speeds import ProductSpeeds
from inference_service.engine.products import dequantized_bytes
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
    check_sizes,
    fit,
    kv_bytes,
    needs_of,
)
from inference_service.models.kv_setup import KVSetup, KVSetups, Share, nothing_shared, setup_name
from inference_service.models.loaded import LoadedModel, OpenedModel, read_weights, take_memory
from inference_service.models.opening import ModelInfo, ModelSpec, ModelText, open_network, open_text, shape_of
from inference_service.models.proof import check_runs
from inference_service.models.proofs import Proofs
from inference_service.models.sources import fetch, fetch_description
from inference_service.pool.memory import Budget, Sizes
from inference_service.settings import WorkerSettings

log = logging.getLogger(__name__)

_T = TypeVar("_T")

ReportProgress = Callable[[LoadStage, float], object]
"""Called with a load's stage and share."""

_DOWNLOADS = 64
"""On threads of their own: they may take hours."""
_FILE_THREADS = 4
_FRESH_SECONDS = 0.05
"""Free memory is measured that seldom."""
_FIRST_SHARE = 4
"""First segments of blocks and of pieces take such a part of a load's memory for KV."""
ATTENTION = AttentionBackend()
"""Installed in mlx-lm's modules, so one for the process."""


class NotFetched(FailedPrecondition):
    """A hub's model that could be fetched."""


class Loader:
    """Opens and loads models. Event loop only; one `load` at a time."""

    def __init__(
        self, engine: EngineThread, settings: WorkerSettings, hints: TurnHints, share: Share = nothing_shared
    ) -> None:
        """`share` is StoreClient.share_setup."""
        self._engine = engine
        self._settings = settings
        self._hints = hints
        caches = settings.data_directory / "worker"
        self._hashes = ContentHashes(caches / "weights.json")
        self._hashing = asyncio.Lock()
        self._proofs = Proofs(caches / "proofs.json", ProductSpeeds(caches / "products.json"))
        self._activations = Activations(caches / "activations.json")
        self._kv = KVSetups(caches, quality_check=settings.quality_check)
        self._share = share
        self._texts: dict[str, tuple[object, ModelText]] = {}
        self._downloads = ThreadPoolExecutor(_DOWNLOADS, "fetch")
        self._files = ThreadPoolExecutor(_FILE_THREADS, "model-files")
        self._stopped = False
        self._obtainable, self._looked = 0, -math.inf
        self.budget = Budget(self._lately_obtainable_bytes)

    @property
    def limits(self) -> MemoryLimits:
        """The memory for all models, in total and free now."""
        return MemoryLimits(share_bytes(), self._settings.loaded_models, self._obtainable_bytes())

    @property
    def calibrations(self) -> Calibrations:
        return self._kv.calibrations

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

    async def open(self, registered: RegisteredModel, report: ReportProgress) -> OpenedModel:
        """Fetch, open and fingerprint a model, without reading weights to memory. Raises FailedPrecondition."""
        await self._must_be_fetched(registered)
        info, network = await self._open(registered, report, offline=self._settings.offline)
        fingerprint = await self._fingerprint(info)
        info = self._with_fitting_context(self._kv.chosen(fingerprint, info))
        if refusal := self._fit(info, info.context_length).refusal:
            raise FailedPrecondition(refusal)
        known = None if on_cpu() else self._activations.remembered(_packed(fingerprint, info), info.context_length)
        needs = self.needs(replace(info, cost=MeasuredCost(known)) if known else info)
        return OpenedModel(info, network, fingerprint, needs)

    async def fetch(self, registered: RegisteredModel, report: ReportProgress) -> None:
        """Download a model that can run here, unless it is here. Raises FailedPrecondition and Unavailable."""
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

    async def load(
        self,
        opened: OpenedModel,
        residents: Sequence[Resident],
        report: ReportProgress,
        others_decode: Callable[[], bool] = lambda: False,
    ) -> LoadedModel:
        """Read, prove and measure a model, and take memory beside `residents`. Raises FailedPrecondition, leaving
        nothing.
        """
        needs = opened.needs
        with self.budget.promised(needs.fixed_bytes + needs.least_kv_bytes):
            loaded = await self._load(opened, residents, report, others_decode)
        self.budget.promise(loaded.model_id, lambda: loaded.promised_bytes)
        loaded.memory.admission.spare = self.budget.spare
        return loaded

    def unloaded(self, model: LoadedModel) -> None:
        self.budget.withdraw(model.model_id)

    async def _load(
        self,
        opened: OpenedModel,
        residents: Sequence[Resident],
        report: ReportProgress,
        others_decode: Callable[[], bool],
    ) -> LoadedModel:
        info, network, fingerprint = opened.info, opened.network, opened.fingerprint
        call = partial(self._call, info.spec)
        check_sizes(info, self.sizes(info, opened.needs, residents))
        pieces = read_weights(info, network)
        report(LoadStage.READ, 0.0)
        while (share := await call(lambda: next(pieces, None))) is not None:
            report(LoadStage.READ, share)
        if await self._fingerprint(info) != fingerprint:
            raise FailedPrecondition(f"the files of model {info.model_id!r} changed while it was loaded; load it again")
        await call(lambda: check_runs(info, network))
        while True:
            report(LoadStage.MEASURE, 0.0)
            setup = await self._setup(call, fingerprint, network, info)
            if setup.format != info.geometry.format:
                info = self._with_fitting_context(info.with_format(setup.format))
            report(LoadStage.PROVE, 0.0)
            proof = await call(partial(self._proofs.of, fingerprint, info, network))
            info = proof.info
            if setup.format == info.geometry.format:  # else its scheme fails here, and it has another
                break
        if info.context_length < info.own_context_length:
            words = "the context is as long as memory holds; set --context-length for another"
            lengths = {"context": info.context_length, "own_context": info.own_context_length}
            logs.event(log, words, model=info.model_id, **lengths)
        report(LoadStage.PROVE, 0.9)
        info = replace(info, cost=await call(lambda: self._cost(fingerprint, network, info)))
        report(LoadStage.POOL, 0.0)
        needs = self.needs(info)
        memory = self.sizes(info, needs, residents)
        before = opened.needs
        there = self.budget.spare() + before.least_kv_bytes + before.activation_bytes - needs.activation_bytes
        memory = replace(memory, segment_bytes=max(0, there) // _FIRST_SHARE)
        loaded = await call(
            lambda: take_memory(
                replace(opened, info=info),
                proof.paths,
                proof.kernels,
                setup,
                memory,
                needs.activation_bytes,
                self._hints,
                others_decode,
            )
        )
        loaded.engine.speculative, loaded.memory.wait = self._settings.speculation, self._settings.room_wait
        await self._on_file_thread(loaded.prepare)
        return loaded

    def _cost(self, fingerprint: str, network: Network, info: ModelInfo) -> Cost:
        """Measure on a GPU; a CPU would take minutes. Engine thread."""
        if isinstance(info.cost, EstimatedCost) and on_cpu():
            return with_measured_states(info.cost, network, info.geometry)
        peak = self._activations.of(_packed(fingerprint, info), network, info.geometry, info.context_length)
        return MeasuredCost(peak, dequantized_bytes(network.model, info.geometry.dtype))

    async def _setup(
        self, call: Callable[..., Awaitable[Any]], fingerprint: str, network: Network, info: ModelInfo
    ) -> KVSetup:
        """Return a cluster's setup of the model, or find one.

        Without the store's answer the model serves with its own, which the fingerprint of its KV names.
        """
        name = setup_name(fingerprint, info.geometry.format)
        if shared := await self._share(name, b""):
            self._kv.adopt(fingerprint, info, shared)
        setup: KVSetup = await call(lambda: self._kv.of(fingerprint, network, info))
        mine = self._kv.shared(setup, info)
        first = None if shared else await self._share(name, mine)
        if first and first != mine:  # another machine was a moment faster
            self._kv.adopt(fingerprint, info, first)
            setup = await call(lambda: self._kv.of(fingerprint, network, info))
        return setup

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
        of = registered.model_id, *hub, ATTENTION, self._quantization(registered)
        shape = await self._engine.call(lambda: shape_of(*of))
        if refusal := self._fit(shape, registered.context_length or self._settings.context_length).refusal:
            raise FailedPrecondition(refusal)
        return True

    def _quantization(self, registered: RegisteredModel) -> QuantizationSettings:
        settings = self._settings
        bits = registered.kv_bits or settings.kv_bits
        group_size = registered.kv_group_size or settings.kv_group_size
        return QuantizationSettings(None if bits == AUTO else KVBits.parse(bits), group_size)

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
            quantization=self._quantization(registered),
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

    async def _call(self, spec: ModelSpec, function: Callable[[], _T]) -> _T:
        """Run the model's code on the engine thread."""

        def step() -> _T:
            with spec.refused:
                return function()

        return await self._engine.call(step)

    async def _on_file_thread(self, function: Callable[..., _T], *arguments: Any) -> _T:
        return await asyncio.get_running_loop().run_in_executor(self._files, function, *arguments)


def _packed(fingerprint: str, info: ModelInfo) -> str:
    return f"{fingerprint}, {info.geometry.format} bits, {info.geometry.format.scheme}"

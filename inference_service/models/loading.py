"""Loading a model, in steps between which other streams continue.

    fetch → open (tokenizer, network, fingerprint) → read the weights, piece by piece → measure how KV is packed
          → prove attention, measure activations → take the memory for KV

Failures leave garbage only.
"""

import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from agentmem.errors import FailedPrecondition
from agentmem.kv.hints import TurnHints
from agentmem.load_stages import LoadStage
from agentmem.process import logs
from agentmem.process.models import RegisteredModel
from inference_service.engine.activations import Activations, with_measured_states
from inference_service.engine.calibration import Calibrations
from inference_service.engine.computing import Cost, EstimatedCost, MeasuredCost
from inference_service.engine.device import on_cpu
from inference_service.engine.network import Network
from inference_service.engine.pausing import patient
from inference_service.engine.product_speeds import ProductSpeeds, careful
from inference_service.engine.products import dequantized_bytes
from inference_service.engine.quantization import BALANCED, ROTATED
from inference_service.engine.thread import EngineThread
from inference_service.models.finding import Finder, ReportProgress
from inference_service.models.fitting import (
    Resident,
    check_sizes,
)
from inference_service.models.kv_setup import KVSetup, KVSetups, Share, nothing_shared, setup_name
from inference_service.models.loaded import LoadedModel, OpenedModel, read_weights, take_memory, taken_bytes
from inference_service.models.opening import ModelInfo, ModelSpec
from inference_service.models.proof import Proof, check_runs, unproved
from inference_service.models.proofs import Proofs
from inference_service.models.wiring import Wiring
from inference_service.pool.memory import Budget
from inference_service.settings import WorkerSettings

log = logging.getLogger(__name__)

_T = TypeVar("_T")

_FIRST_SHARE = 4
"""First segments of blocks and of pieces take such a part of a load's memory for KV."""


class Loader(Finder):
    """Event loop only; one `load` at a time."""

    def __init__(
        self, engine: EngineThread, settings: WorkerSettings, hints: TurnHints, share: Share = nothing_shared
    ) -> None:
        """`share` is StoreClient.share_setup."""
        super().__init__(engine, settings)
        self._hints = hints
        caches = settings.data_directory / "worker"
        self._proofs = Proofs(caches / "proofs.json", ProductSpeeds(caches / "products.json"))
        self._activations = Activations(caches / "activations.json")
        self._kv = KVSetups(caches, quality_check=settings.quality_check)
        self._share = share
        self.budget = Budget(self._lately_obtainable_bytes)
        self.wiring = Wiring(settings.wired)

    @property
    def calibrations(self) -> Calibrations:
        return self._kv.calibrations

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

    async def load(
        self,
        opened: OpenedModel,
        residents: Sequence[Resident],
        report: ReportProgress,
        others_decode: Callable[[], bool] = lambda: False,
        *,
        measure_first: bool = False,
    ) -> LoadedModel:
        """Read, prove and measure a model, large new ones only if `measure_first`, and take memory beside `residents`.
        Raises FailedPrecondition, leaving nothing.
        """
        needs = opened.needs
        with self.budget.promised(needs.fixed_bytes + needs.least_kv_bytes):
            loaded = await self._load(opened, residents, report, others_decode, measure_first)
        self.budget.promise(loaded.model_id, lambda: loaded.promised_bytes)
        loaded.memory.admission.spare = self.budget.spare
        return loaded

    def unloaded(self, model: LoadedModel) -> None:
        self.budget.withdraw(model.model_id)

    async def measure(self, opened: OpenedModel, wanted: Callable[[], bool]) -> None:
        """Measure and prove a model that serves, in pauses between turns; a later load takes what was found. Raises
        CalledOff once it is not `wanted`, and FailedPrecondition for a model that cannot serve.
        """
        apart = replace(opened, network=opened.network.twin())
        with self.budget.promised(opened.needs.activation_bytes):
            await self._measured(apart, partial(self._call, opened.info.spec, wanted), lambda *_: None)

    async def _load(
        self,
        opened: OpenedModel,
        residents: Sequence[Resident],
        report: ReportProgress,
        others_decode: Callable[[], bool],
        measure_first: bool,
    ) -> LoadedModel:
        info, network, fingerprint = opened.info, opened.network, opened.fingerprint
        call = partial(self._call, info.spec, None)
        memory = self.sizes(info, opened.needs, residents)
        check_sizes(info, memory)
        await call(lambda: self.wiring.want(info.model_id, taken_bytes(info, opened.needs.activation_bytes, memory)))
        pieces = read_weights(info, network)
        report(LoadStage.READ, 0.0)
        while (share := await call(lambda: next(pieces, None))) is not None:
            report(LoadStage.READ, share)
        if await self._fingerprint(info) != fingerprint:
            raise FailedPrecondition(f"the files of model {info.model_id!r} changed while it was loaded; load it again")
        if shared := await self._share(setup_name(fingerprint, info.geometry.format), b""):
            self._kv.adopt(fingerprint, info, shared)
        if later := not measure_first and self._keeps_waiting(opened):
            await call(lambda: careful(network.model, info.geometry.dtype))
        await call(lambda: check_runs(info, network))
        if later:
            setup, proof = await call(lambda: self._unmeasured(opened))
        else:
            setup, proof = await self._measured(opened, call, report)
        info = proof.info
        if info.context_length < info.own_context_length:
            words = "the context is as long as memory holds; set --context-length for another"
            lengths = {"context": info.context_length, "own_context": info.own_context_length}
            logs.event(log, words, model=info.model_id, **lengths)
        if not later:
            report(LoadStage.PROVE, 0.9)
        info = replace(info, cost=await call(lambda: self._cost(fingerprint, network, info, measures=not later)))
        report(LoadStage.POOL, 0.0)
        needs = self.needs(info)
        memory = self.sizes(info, needs, residents)
        before = opened.needs
        there = self.budget.spare() + before.least_kv_bytes + before.activation_bytes - needs.activation_bytes
        memory = replace(memory, segment_bytes=max(0, there) // _FIRST_SHARE)

        def taken() -> LoadedModel:
            self.wiring.want(info.model_id, taken_bytes(info, needs.activation_bytes, memory))
            return take_memory(
                replace(opened, info=info),
                proof.paths,
                proof.kernels,
                setup,
                memory,
                needs.activation_bytes,
                self._hints,
                others_decode,
            )

        loaded = await call(taken)
        loaded.engine.speculative, loaded.memory.wait = self._settings.speculation, self._settings.room_wait
        await self._on_file_thread(loaded.prepare)
        return loaded

    def _cost(self, fingerprint: str, network: Network, info: ModelInfo, *, measures: bool) -> Cost:
        """Measure on a GPU; a CPU would take minutes. Engine thread."""
        if isinstance(info.cost, EstimatedCost) and on_cpu():
            return with_measured_states(info.cost, network, info.geometry)
        if not measures and self._activations.remembered(_packed(fingerprint, info), info.context_length) is None:
            return info.cost
        peak = self._activations.of(_packed(fingerprint, info), network, info.geometry, info.context_length)
        return MeasuredCost(peak, dequantized_bytes(network.model, info.geometry.dtype))

    def _keeps_waiting(self, opened: OpenedModel) -> bool:
        """Measuring or proving the model would delay the first answer."""
        of = opened.fingerprint, opened.info
        if opened.info.weight_bytes <= self._settings.measure_first_bytes:
            return False
        if self._kv.knows(*of):
            return not self._proofs.knows(*of)
        return self._fit(_careful(opened.info)).context_length >= opened.info.context_length

    def _unmeasured(self, opened: OpenedModel) -> tuple[KVSetup, Proof]:
        """Return the known setup, or a careful one, and unproved ways. Engine thread."""
        info, network = opened.info, opened.network
        if self._kv.knows(opened.fingerprint, info):
            setup = self._kv.of(opened.fingerprint, network, info)
        else:
            setup = KVSetup(_careful(info).geometry.format, reason="until the model is measured, between turns")
        if setup.format != info.geometry.format:
            info = self._with_fitting_context(info.with_format(setup.format))
        proof = unproved(info, network)
        return replace(setup, format=proof.info.geometry.format, final=False), proof

    async def _measured(
        self, opened: OpenedModel, call: Callable[..., Awaitable[Any]], report: ReportProgress
    ) -> tuple[KVSetup, Proof]:
        info = opened.info
        while True:
            report(LoadStage.MEASURE, 0.0)
            setup = await self._setup(call, opened.fingerprint, opened.network, info)
            if setup.format != info.geometry.format:
                info = self._with_fitting_context(info.with_format(setup.format))
            report(LoadStage.PROVE, 0.0)
            proof: Proof = await call(partial(self._proofs.of, opened.fingerprint, info, opened.network))
            info = proof.info
            if setup.format == info.geometry.format:  # else its scheme fails here, and it has another
                return setup, proof

    async def _setup(
        self, call: Callable[..., Awaitable[Any]], fingerprint: str, network: Network, info: ModelInfo
    ) -> KVSetup:
        """Return the setup that a cluster has, or find one.

        Without the store's answer the model serves with its own, which the fingerprint of its KV names.
        """
        known = self._kv.knows(fingerprint, info)
        setup: KVSetup = await call(lambda: self._kv.of(fingerprint, network, info))
        mine = self._kv.shared(setup, info)
        first = None if known else await self._share(setup_name(fingerprint, info.geometry.format), mine)
        if first and first != mine:  # another machine was a moment faster
            self._kv.adopt(fingerprint, info, first)
            setup = await call(lambda: self._kv.of(fingerprint, network, info))
        return setup

    async def _call(self, spec: ModelSpec, wanted: Callable[[], bool] | None, function: Callable[[], _T]) -> _T:
        """Run the model's code on the engine thread; patiently while `wanted`, if that is given."""

        def step() -> _T:
            with spec.refused, patient(wanted) if wanted else nullcontext():
                return function()

        return await self._engine.call(step)


def _careful(info: ModelInfo) -> ModelInfo:
    """Return a model with 8 bits and without bases, which are not known yet."""
    format = info.geometry.format.with_bits("8")
    return info.with_format(replace(format, scheme=ROTATED) if format.scheme == BALANCED else format)


def _packed(fingerprint: str, info: ModelInfo) -> str:
    return f"{fingerprint}, {info.geometry.format} bits, {info.geometry.format.scheme}"

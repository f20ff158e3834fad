"""Where the steps of a load run: files on plain threads, MLX on its own, one short call after the other."""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

from agentmem.errors import FailedPrecondition, Unavailable
from agentmem.hints import TurnHints
from agentmem.models import RegisteredModel
from inference_service.engine.activations import Activations
from inference_service.engine.attention import AttentionSeam, PathSpeeds
from inference_service.engine.device import usable_bytes
from inference_service.engine.quality import QualityChecks
from inference_service.engine.thread import EngineThread
from inference_service.models.capability import Quantization, check_config
from inference_service.models.fetching import fetch, fetch_config
from inference_service.models.fingerprint import ContentHashes, identity
from inference_service.models.loading import (
    LoadedModel,
    check_sizes,
    fingerprint_of,
    finish,
    least_activation_bytes,
    needs_of,
    prove,
    read_weights,
)
from inference_service.models.opening import (
    ModelSpec,
    ModelText,
    OpenedModel,
    Outline,
    open_network,
    open_text,
)
from inference_service.models.residency import Limits, Needs, Resident, kv_bytes
from inference_service.pool.sizing import Sizes, sizes
from inference_service.settings import WorkerSettings

_T = TypeVar("_T")
_Files = tuple[ModelSpec, frozenset[tuple[str, str]]]

Progress = Callable[[str, float], object]
"""What is told of a load: its stage, and the share of that which is done."""

_DOWNLOADS = 64
"""Downloads at once. They have threads of their own, because turns need those of the event loop."""

FETCH, READ, SELF_TEST, POOL = "fetch", "read", "self-test", "pool"


@dataclass(frozen=True)
class Opening:
    """A model that could be loaded: opened, named, and with what it needs."""

    model: OpenedModel
    fingerprint: str
    needs: Needs


class NotFetched(FailedPrecondition):
    """A hub's model that is not here, and that nothing speaks against."""


class Loader:
    """Opens and loads models, as the worker's settings say. Event loop only; one load at a time."""

    def __init__(self, engine: EngineThread, settings: WorkerSettings, hints: TurnHints) -> None:
        """`hints` are what all models' agents are evicted by."""
        self._engine = engine
        self._settings = settings
        self._hints = hints
        remembered = settings.data_directory / "worker"
        self._hashes = ContentHashes(remembered / "weights.json")
        self._hashing = asyncio.Lock()
        self._downloads = ThreadPoolExecutor(_DOWNLOADS, "fetch")
        self._stopped = False
        self._speeds = PathSpeeds(remembered / "attention.json")
        self._activations = Activations(remembered / "activations.json")
        self._qualities = QualityChecks(remembered / "quality.json")
        self._seam = AttentionSeam()
        self._texts: dict[str, tuple[_Files, ModelText]] = {}
        self.limits = Limits(usable_bytes(), settings.loaded_models)

    def stop(self) -> None:
        """End downloads, which otherwise would hold up the end of the process."""
        self._stopped = True
        self._downloads.shutdown(wait=False, cancel_futures=True)

    async def outline(self, registered: RegisteredModel) -> Outline:
        """What is known of a model without its weights, of which none are fetched.

        Of a hub's model that is not here config.json is, so that one which cannot run is refused before a download.
        Raises FailedPrecondition: NotFetched for one of which nothing more is known. Unavailable where the hub is.
        """
        if await self._check_config(registered):
            raise NotFetched(
                f"model {registered.model_id!r} is not on this machine yet; load it (`agentmem models load`), which "
                "fetches it, and so does its first turn"
            )
        return (await self._open(registered, lambda _stage, _share: None, offline=True)).outline

    async def open(self, registered: RegisteredModel, progress: Progress) -> Opening:
        """Fetch what is missing, look at the model, and name it. No weights are in memory then.

        Raises FailedPrecondition for what cannot run in Q4 and for files that are missing or damaged.
        """
        await self._check_config(registered)
        model = await self._open(registered, progress, offline=self._settings.offline)
        outline = model.outline
        fingerprint = await self._fingerprint(outline)
        known = self._activations.remembered(fingerprint, outline.context_length)
        return Opening(model, fingerprint, self.needs(outline, known))

    def needs(self, outline: Outline, activation_bytes: int | None = None) -> Needs:
        """What a model takes; computing is estimated where it was not measured."""
        if activation_bytes is None:
            activation_bytes = least_activation_bytes(outline)
        return needs_of(outline, activation_bytes, self._settings.pool_bytes, self._settings.batch_bytes)

    def sizes(self, outline: Outline, needs: Needs, residents: Sequence[Resident]) -> Sizes:
        """How the memory for KV would be divided, beside the models that are loaded."""
        share = kv_bytes(needs, residents, self.limits)
        given = self._settings.pool_bytes, self._settings.batch_bytes
        return sizes(share, outline.geometry, outline.context_length, *given, self._settings.typical_tokens)

    async def load(
        self,
        opening: Opening,
        residents: Sequence[Resident],
        progress: Progress,
        others_decode: Callable[[], bool] = lambda: False,
    ) -> LoadedModel:
        """Read, prove and measure the model, and take its memory; `residents` are those that stay loaded.

        Raises FailedPrecondition; then nothing of it is left in memory.
        """
        outline = opening.model.outline
        call = partial(self._call, outline.spec)
        check_sizes(outline, self.sizes(outline, opening.needs, residents))
        pieces = read_weights(opening.model)
        progress(READ, 0.0)
        while (share := await call(lambda: next(pieces, None))) is not None:
            progress(READ, share)
        progress(SELF_TEST, 0.0)
        if await self._fingerprint(outline) != opening.fingerprint:
            raise FailedPrecondition(
                f"the files of model {outline.spec.model_id!r} changed while it was loaded; load it again"
            )
        paths = await call(lambda: prove(opening.model, self._seam, self._speeds))
        named = opening.fingerprint, opening.model.network
        shape = outline.geometry, outline.context_length
        quality = None
        if self._settings.quality_check:
            progress(SELF_TEST, 0.3)
            quality = await call(lambda: self._qualities.of(*named, outline.tokenizer, outline.geometry))
        progress(SELF_TEST, 0.6)
        needs = self.needs(outline, await call(lambda: self._activations.of(*named, *shape)))
        progress(POOL, 0.0)
        memory = self.sizes(outline, needs, residents)
        given = needs.activation_bytes, opening.fingerprint, self._hints, others_decode
        loaded = await call(lambda: finish(opening.model, paths, quality, memory, *given))
        await asyncio.to_thread(loaded.grammars.prepare)
        # Found by rendering: turns then take what is known, on the event loop.
        await asyncio.to_thread(lambda: loaded.renderer.transient_stops)
        return loaded

    async def _check_config(self, registered: RegisteredModel) -> bool:
        """Whether the model would have to be fetched; raises FailedPrecondition for one that could not run then."""
        if self._settings.offline:
            return False
        loop = asyncio.get_running_loop()
        config = await loop.run_in_executor(self._downloads, fetch_config, registered.source)
        if config is not None:
            quantization = self._quantization(registered)
            await self._engine.call(lambda: check_config(registered.model_id, config, quantization))
        return config is not None

    def _quantization(self, registered: RegisteredModel) -> Quantization:
        settings = self._settings
        return Quantization(registered.kv_bits or settings.kv_bits, registered.kv_group_size or settings.kv_group_size)

    async def _call(self, spec: ModelSpec, function: Callable[[], _T]) -> _T:
        """Run a step of a load, which runs the model's code, on the engine thread."""

        def step() -> _T:
            with spec.refused:
                return function()

        return await self._engine.call(step)

    async def _open(self, registered: RegisteredModel, progress: Progress, *, offline: bool) -> OpenedModel:
        spec = await self._spec(registered, progress, offline)
        text = await asyncio.to_thread(self._text, spec)
        return await self._engine.call(lambda: open_network(spec, text, self._seam))

    def _text(self, spec: ModelSpec) -> ModelText:
        """Opened once, and again where a file is another: swaps would wait for the tokenizer. Not on the event loop."""
        files = _files(spec)
        known = self._texts.get(spec.model_id)
        if known is None or known[0] != files:
            self._texts[spec.model_id] = known = files, open_text(spec)
        return known[1]

    async def _spec(self, registered: RegisteredModel, progress: Progress, offline: bool) -> ModelSpec:
        loop, settings = asyncio.get_running_loop(), self._settings

        def fetched(share: float) -> None:
            if self._stopped:
                raise Unavailable("the worker is shutting down")
            loop.call_soon_threadsafe(progress, FETCH, share)

        work = partial(fetch, registered.source, offline=offline, progress=fetched)
        directory = await loop.run_in_executor(self._downloads, work)
        return ModelSpec(
            model_id=registered.model_id,
            directory=directory,
            adapter=Path(registered.adapter) if registered.adapter else None,
            dtype=settings.dtype,
            quantization=self._quantization(registered),
            context_length=registered.context_length or settings.context_length,
        )

    async def _fingerprint(self, outline: Outline) -> str:
        async with self._hashing:
            try:
                return await asyncio.to_thread(fingerprint_of, outline.spec, outline.geometry, self._hashes)
            except OSError as error:
                raise FailedPrecondition(
                    f"the files of model {outline.spec.model_id!r} cannot be read: {error}"
                ) from error


def _files(spec: ModelSpec) -> _Files:
    """What tells that a file of a model was replaced, changed or added."""
    try:
        return spec, frozenset((path.name, identity(path.stat())) for path in spec.directory.iterdir())
    except OSError as error:
        raise FailedPrecondition(f"model {spec.model_id!r} cannot be loaded from {spec.directory}: {error}") from error

"""The model that serves."""

from collections.abc import Mapping

from agentmem.errors import FailedPrecondition, NotFound, Unavailable
from agentmem.models import RegisteredModel
from inference_service.engine.attention import PathSpeeds
from inference_service.engine.thread import EngineThread
from inference_service.models.fingerprint import ContentHashes
from inference_service.models.loading import LoadedModel, load
from inference_service.models.opening import Quantization
from inference_service.settings import WorkerSettings


class Models:
    """The registered models and the loaded one. Event loop only."""

    def __init__(
        self, registered: Mapping[str, RegisteredModel], engine: EngineThread, settings: WorkerSettings
    ) -> None:
        self.registered = dict(registered)
        self.default = next(iter(self.registered))
        self.loaded: LoadedModel | None = None
        self._engine = engine
        self._settings = settings

    async def load_default(self) -> LoadedModel:
        """Load the default model. Raises what `loading.load` raises."""
        settings = self._settings
        remembered = settings.data_directory / "worker"
        hashes, speeds = ContentHashes(remembered / "weights.json"), PathSpeeds(remembered / "attention.json")
        quantization = Quantization(settings.kv_bits, settings.kv_group_size)

        def run() -> LoadedModel:
            return load(
                self.default,
                self.registered[self.default].source,
                dtype=settings.dtype,
                quantization=quantization,
                context_length=settings.context_length,
                pool_bytes=settings.pool_bytes,
                batch_bytes=settings.batch_bytes,
                hashes=hashes,
                speeds=speeds,
            )

        self.loaded = await self._engine.call(run)
        self._engine.attach(self.loaded.engine.tick)
        return self.loaded

    def get(self, model_id: str) -> LoadedModel:
        """The model that a request names.

        Raises NotFound for an unregistered one, Unavailable while it loads, FailedPrecondition for another than the one
        that this worker serves.
        """
        self.check_registered(model_id)
        if self.loaded is None:
            raise Unavailable(f"model {self.default!r} is loading", retry_after=2)
        if model_id != self.loaded.model_id:
            raise FailedPrecondition(
                f"this worker serves {self.loaded.model_id!r}; start one with --model {model_id} to use that model"
            )
        return self.loaded

    def check_registered(self, model_id: str) -> None:
        """Raise NotFound for an unregistered model."""
        if model_id not in self.registered:
            raise NotFound("model", model_id, f"registered are {', '.join(self.registered)}")

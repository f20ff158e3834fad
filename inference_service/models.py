"""Which models there are, and the one that serves."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from agentmem.errors import FailedPrecondition, NotFound, Unavailable
from agentmem.settings import SettingsError
from inference_service.engine.attention import PathSpeeds
from inference_service.engine.fingerprint import ContentHashes
from inference_service.engine.loading import LoadedModel, Quantization, load
from inference_service.engine.thread import EngineThread
from inference_service.settings import WorkerSettings

DEMO = "demo"
_DEMO_DIRECTORY = Path(__file__).parent / "demo_model"


def registry(names: Sequence[str]) -> dict[str, str]:
    """Model names to sources, in order, the default first. The bundled demo model is always there.

    `NAME=SOURCE` names a source; a bare hub id is its own name, a bare path is named by its last part. Raises
    SettingsError for a name that is given twice, and for a path that is no directory.
    """
    sources: dict[str, str] = {}
    for given in names:
        name, separator, source = given.partition("=")
        if given == DEMO:
            name, source = DEMO, str(_DEMO_DIRECTORY)
        elif not separator:
            name, source = (Path(given).resolve().name if Path(given).expanduser().is_dir() else given), given
        if not name or not source:
            raise SettingsError(f"--model {given!r}: give a path, a hub id, or NAME= one of them")
        if name in sources:
            raise SettingsError(f"--model {given!r}: the name {name!r} is taken; give another with NAME=")
        if source.startswith(("/", ".", "~")) and not Path(source).expanduser().is_dir():
            raise SettingsError(f"--model {given!r}: there is no directory {source}")
        sources[name] = str(Path(source).expanduser()) if Path(source).expanduser().is_dir() else source
    sources.setdefault(DEMO, str(_DEMO_DIRECTORY))
    return sources


class Models:
    """The registered models and the loaded one. Event loop only."""

    def __init__(self, sources: Mapping[str, str], engine: EngineThread, settings: WorkerSettings) -> None:
        self.sources = dict(sources)
        self.default = next(iter(self.sources))
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
                self.sources[self.default],
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
        if model_id not in self.sources:
            raise NotFound("model", model_id, f"registered are {', '.join(self.sources)}")

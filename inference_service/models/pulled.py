"""Models that were pulled stay registered."""

import json
import logging
import threading
from collections.abc import Mapping
from pathlib import Path

from agentmem import durable
from agentmem.errors import FailedPrecondition
from agentmem.process import logs
from agentmem.process.models import RegisteredModel, is_hub_id

log = logging.getLogger(__name__)


class PulledModels:
    """Their ids in a JSON file. Thread-safe."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self.unkept: set[str] = set()

    def beside(self, given: Mapping[str, RegisteredModel]) -> dict[str, RegisteredModel]:
        """Return the given models, then those that were pulled; none of a damaged file."""
        try:
            kept = [each for each in self._kept() if is_hub_id(each)]
        except (OSError, ValueError) as error:
            logs.event(log, "cannot read which models were pulled", logging.WARNING, path=self._path, error=str(error))
            kept = []
        return {**given, **{each: RegisteredModel(each, each) for each in kept if each not in given}}

    def keep(self, model_id: str) -> None:
        """Rename a damaged file before writing another. Raises FailedPrecondition."""
        with self._lock:
            try:
                self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                try:
                    kept = self._kept()
                except ValueError:
                    kept = []
                    self._path.replace(self._path.with_suffix(".damaged"))
                durable.write(self._path, json.dumps({"models": sorted({*kept, model_id})}, indent=1))
                self.unkept.discard(model_id)
            except OSError as error:
                self.unkept.add(model_id)
                raise FailedPrecondition(
                    f"model {model_id!r} is pulled, but not kept: {self._path} cannot be written ({error.strerror}); "
                    "mend that and pull it again, or it is not registered after a restart"
                ) from None

    def _kept(self) -> list[str]:
        """Raises OSError and ValueError."""
        try:
            known = json.loads(self._path.read_text())
        except FileNotFoundError:
            return []
        models = known.get("models") if isinstance(known, dict) else None
        if not isinstance(models, list) or not all(isinstance(each, str) for each in models):
            raise ValueError("it has no list of models")
        return models

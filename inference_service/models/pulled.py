"""Models that were pulled stay registered."""

from collections.abc import Mapping
from pathlib import Path

from agentmem.process.models import RegisteredModel, is_hub_id
from inference_service.json_cache import JsonCache

_NAME = "models"


class PulledModels:
    def __init__(self, path: Path) -> None:
        self._file = JsonCache(path)

    def beside(self, given: Mapping[str, RegisteredModel]) -> dict[str, RegisteredModel]:
        """Return the given models, then those that were pulled."""
        kept = (each for each in self._kept(self._file.get(_NAME)) if is_hub_id(each))
        return {**given, **{each: RegisteredModel(each, each) for each in kept if each not in given}}

    def keep(self, model_id: str) -> None:
        self._file.update(lambda known: {**known, _NAME: sorted({*self._kept(known.get(_NAME)), model_id})})

    @staticmethod
    def _kept(value: object) -> list[str]:
        return [each for each in value if isinstance(each, str)] if isinstance(value, list) else []

"""Stages of a model's load, as LoadProgress names them."""

from enum import StrEnum
from typing import Final


class LoadStage(StrEnum):
    """In the order of a load."""

    WAIT = "wait"
    FETCH = "fetch"
    READ = "read"
    MEASURE = "measure"
    PROVE = "prove"
    POOL = "pool"
    READY = "ready"

    @property
    def words(self) -> str:
        return _WORDS[self]

    @property
    def once(self) -> bool:
        """Its results are kept: a later load of the model skips it."""
        return self in (LoadStage.FETCH, LoadStage.MEASURE, LoadStage.PROVE)


_WORDS: Final = {
    LoadStage.WAIT: "waiting for its turn, and for others to make room",
    LoadStage.FETCH: "downloading it from the hub",
    LoadStage.READ: "reading the weights",
    LoadStage.MEASURE: "measuring how few bits its KV needs",
    LoadStage.PROVE: "proving attention on this device",
    LoadStage.POOL: "taking memory for KV",
    LoadStage.READY: "ready",
}

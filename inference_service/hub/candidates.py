"""A hub's models, and whether each would run here, by list of files and config.json."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final

from huggingface_hub import HfApi, get_session, hf_hub_url
from huggingface_hub.utils import build_hf_headers, hf_raise_for_status  # type: ignore[attr-defined]

from agentmem.errors import AgentmemError, FailedPrecondition, Unavailable
from inference_service.engine.device import obtainable_bytes, share_bytes
from inference_service.models.finding import ATTENTION, quantization_of
from inference_service.models.fitting import Fit, KVLimits, MemoryLimits, fit
from inference_service.models.opening import shape_of
from inference_service.models.sources import HUB_ERRORS, Listing, NothingToLoad, listed, refusal
from inference_service.settings import WorkerSettings

RECOMMENDED: Final = "mlx-community"
"""It converts models for MLX, mostly quantized."""

_TAG, _TASK = "mlx", "text-generation"
_LISTED = 500

_AT_ONCE = 8
_TIMEOUT = 10.0
_MOST_CONFIG_BYTES = 1 << 20
_MOST_LAYERS = 1000
"""Larger networks take long to set up."""


Answer = tuple[Listing | None, dict[str, Any] | None, AgentmemError | None]
"""Files, config.json, and what is wrong."""


@dataclass(frozen=True)
class Found:
    model_id: str
    downloads: int = 0


@dataclass(frozen=True)
class Candidate:
    """A model of a hub; `fit` is None if it cannot be judged (see `problem`).

    `runs`: some machine would do. `fits` is about this one, `fits_now` also about other processes' memory.
    """

    found: Found
    listing: Listing | None = None
    fit: Fit | None = None
    fits_now: bool = False
    runs: bool = True
    answered: bool = True
    problem: str = ""

    @property
    def model_id(self) -> str:
        return self.found.model_id

    @property
    def fits(self) -> bool | None:
        if self.fit is not None:
            return not self.fit.refusal
        too_large = self.listing is not None and _weights(self.listing) > share_bytes()
        return False if too_large or not self.runs else None


def search(words: Sequence[str], limit: int, *, any_format: bool) -> list[Found]:
    """Return models whose ids have all words, or RECOMMENDED's, by downloads. Raises FailedPrecondition and
    Unavailable.
    """
    longest = max(words, key=len, default="")
    try:
        answer = HfApi().list_models(
            search=longest or None,
            author=None if words else RECOMMENDED,
            filter=None if any_format else _TAG,
            pipeline_tag=_TASK,
            sort="downloads",
            limit=_LISTED,
        )
        named = [Found(str(each.id), int(each.downloads or 0)) for each in answer]
    except HUB_ERRORS as error:
        raise refusal(" ".join(words) or RECOMMENDED, error) from None
    return [each for each in named if all(word.lower() in each.model_id.lower() for word in words)][:limit]


def look(found: Sequence[Found], settings: WorkerSettings) -> Iterator[Candidate]:
    return (judge(each, answer, settings) for each, answer in ask(found))


def ask(found: Sequence[Found]) -> Iterator[tuple[Found, Answer]]:
    with ThreadPoolExecutor(_AT_ONCE, "hub") as threads:
        yield from zip(found, threads.map(lambda one: _asked(one.model_id), found), strict=True)


def _asked(model_id: str) -> Answer:
    listing = None
    try:
        listing = listed(model_id)
        return listing, _config(model_id, listing), None
    except AgentmemError as error:
        return listing, None, error
    except HUB_ERRORS as error:
        return listing, None, refusal(model_id, error)


def _config(model_id: str, listing: Listing) -> dict[str, Any]:
    if listing.sizes["config.json"] > _MOST_CONFIG_BYTES:
        raise FailedPrecondition(f"model {model_id!r} has a config.json of {listing.sizes['config.json']:,} bytes")
    url = hf_hub_url(model_id, "config.json", revision=listing.revision)
    answer = get_session().get(url, headers=build_hf_headers(), timeout=_TIMEOUT, follow_redirects=True)
    hf_raise_for_status(answer)
    config: Any = answer.json()
    if not isinstance(config, dict):
        raise TypeError("config.json is no object")
    inside = (part.get("num_hidden_layers") for part in (config, config.get("text_config")) if isinstance(part, dict))
    if (layers := max((each for each in inside if isinstance(each, int)), default=0)) > _MOST_LAYERS:
        raise FailedPrecondition(f"model {model_id!r} cannot be set up from its config.json: {layers} layers")
    return config


def judge(found: Found, answer: Answer, settings: WorkerSettings) -> Candidate:
    """Set up the network, without weights, as a load by `settings` would; in the worker on the engine's thread."""
    listing, config, error = answer
    if listing is None or config is None:
        # Without weights that mlx-lm reads there is nothing to run.
        runs = listing is not None or not isinstance(error, NothingToLoad)
        answered = not isinstance(error, Unavailable)
        return Candidate(found, listing, runs=runs, answered=answered, problem=error.message if error else "")
    try:
        shape = shape_of(found.model_id, config, listing.element_bytes, ATTENTION, quantization_of(settings))
    except FailedPrecondition as refused:
        return Candidate(found, listing, runs=False, problem=refused.message)
    given, models = KVLimits.of(settings), settings.loaded_models
    alone = fit(shape, MemoryLimits(share_bytes(), models), given)
    obtainable = obtainable_bytes(settings.free_memory_floor)
    now = fit(shape, MemoryLimits(share_bytes(), models, obtainable), given)
    return Candidate(found, listing, alone, fits_now=not now.refusal, problem=alone.refusal)


def _weights(listing: Listing) -> int:
    return sum(listing.element_bytes.values())

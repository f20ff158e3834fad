"""Which models there are, and where their files are on this machine; those of a hub are fetched first.

A model in the local cache is used as it is, without asking the hub: loading never waits for a network that it doesn't
need, and weights never change by themselves. What is missing there is fetched by huggingface_hub, as mlx-lm does it:
the files that mlx-lm reads, each moved into place when it is complete, so that an interrupted download goes on with the
rest. Hub errors become errors of the contract; their messages hold no URL and no token.
"""

import errno
import json
import logging
import os
import shutil
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from huggingface_hub import HfApi, constants, errors, hf_hub_download, snapshot_download, try_to_load_from_cache
from huggingface_hub.errors import (
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    XetDownloadError,
)
from huggingface_hub.utils import logging as hub_logging
from huggingface_hub.utils.tqdm import tqdm as hub_tqdm

from agentmem.errors import AgentmemError, FailedPrecondition, Unavailable
from agentmem.process import logs
from agentmem.process.model_registry import register
from agentmem.process.model_sources import DEMO, expanded, is_path
from agentmem.process.models import VARIABLE, RegisteredModel
from agentmem.process.settings import SettingsError
from inference_service.engine.mlx_lm_adapter import DEFAULT_ALLOW_PATTERNS, hf_repo_to_path
from inference_service.models.hub_cache import is_whole
from inference_service.models.weight_files import CONFIG, WEIGHTS, matching

log = logging.getLogger(__name__)

_TIMEOUT = 10.0
_DTYPE_BYTES: Final = {
    **{"F64": 8, "I64": 8, "U64": 8, "F32": 4, "I32": 4, "U32": 4, "F16": 2, "BF16": 2, "I16": 2, "U16": 2},
    **{"I8": 1, "U8": 1, "BOOL": 1, "F8_E4M3": 1, "F8_E5M2": 1},
}
_BELIEVED: Final = 0.02
"""What a file has besides weights: the names and shapes at its head."""

_DEMO_DIRECTORY = Path(__file__).parents[1] / "demo_model"

_HTTP_ERROR: Final[type[Exception]] = errors.HTTPError  # type: ignore[attr-defined]
"""The base of all errors of the HTTP library that huggingface_hub uses, whichever that is."""

HUB_ERRORS: Final[tuple[type[Exception], ...]] = (
    _HTTP_ERROR,
    OSError,
    XetDownloadError,
    RuntimeError,  # what hf_xet raises
    ValueError,  # of names, and of an answer that is not JSON
    KeyError,
    TypeError,
    AttributeError,
    AssertionError,
)
"""What huggingface_hub raises, and reading what it returns; the last five for answers that are none of a hub's."""

_RETRY_SECONDS = 10.0
_UNUSABLE = frozenset(
    {errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EPERM, errno.EROFS, errno.EISDIR, errno.ENOTDIR, errno.EIO}
)
"""Errors of the cache's disk: full, or not to be used."""


def registry(
    names: Sequence[str], adapters: Sequence[str] = (), file: Path | None = None
) -> dict[str, RegisteredModel]:
    """Models by name, the default first. The bundled demo model is always there.

    The arguments are those of `agentmem.process.model_registry.register`. Raises SettingsError.
    """
    try:
        given = register(names, adapters, file)
    except ValueError as error:
        raise SettingsError(str(error)) from error
    return {name: replace(model, source=_place(model.source)) for name, model in given.items()}


def _place(source: str) -> str:
    """The directory, or the hub id."""
    if source == DEMO:
        return str(_DEMO_DIRECTORY)
    return str(expanded(source)) if is_directory(source) else source


def is_directory(source: str) -> bool:
    """Whether the source is a directory, and not a model of a hub."""
    return expanded(source).is_dir()


def fetch(source: str, *, offline: bool, progress: Callable[[float], None]) -> Path:
    """The directory of a model: `source` itself if it is one, else that of the hub id in the hub's local cache.

    Takes as long as a download does, so give it a thread of its own; never the engine's. `progress` gets the share of
    the bytes that are here, from 0 to 1, never less than before, on threads of the download and one at a time. What it
    raises ends the download and comes out of here. With `offline`, or where HF_HUB_OFFLINE is set, the network is
    not touched. Raises FailedPrecondition and Unavailable, which say what to do.
    """
    path = expanded(source)
    if not path.is_dir():
        if is_path(source):
            raise FailedPrecondition(f"model {source!r}: {path} is not a directory; give the directory of a model")
        path = cached(source) or _fetched(source, offline, progress)
    progress(1.0)
    return path


def fetch_description(source: str) -> tuple[dict[str, Any], Mapping[str, int]] | None:
    """Ask a hub, a few kilobytes, about a model of which not all is here; None for others, and offline.

    Return config.json, and bytes of weights as in a Listing. Raises FailedPrecondition and Unavailable, as `fetch`.
    """
    if is_path(source) or expanded(source).is_dir() or cached(source) or constants.is_offline_mode():
        return None
    hub_logging.set_verbosity(logging.ERROR)
    try:
        place = hf_hub_download(source, CONFIG, etag_timeout=_TIMEOUT)
        config: dict[str, Any] = json.loads(Path(place).read_text(encoding="utf-8"))
        return config, listed(source).element_bytes
    except HUB_ERRORS as error:
        raise refusal(source, error) from None


def go_offline() -> None:
    """From now on huggingface_hub and transformers refuse to use the network, in this process and its children.

    They read the variable when they are imported, which they have been.
    """
    os.environ["HF_HUB_OFFLINE"] = "1"
    constants.HF_HUB_OFFLINE = True


def cached(source: str) -> Path | None:
    """The model in the local cache, if all of it is there. Raises FailedPrecondition for what is no hub id."""
    try:
        directory = hf_repo_to_path(source)
    except LocalEntryNotFoundError:
        return None
    except HUB_ERRORS as error:
        raise refusal(source, error) from None
    return directory if is_whole(source, directory) else None


def _fetched(source: str, offline: bool, progress: Callable[[float], None]) -> Path:
    if offline or constants.is_offline_mode():
        raise FailedPrecondition(
            f"model {source!r} is not whole in {constants.HF_HUB_CACHE}, and the worker is offline; load it once "
            f"without --offline, {VARIABLE} and HF_HUB_OFFLINE, or give the directory of a model"
        )
    hub_logging.set_verbosity(logging.ERROR)  # its warnings hold signed URLs
    shares = _Shares(progress)
    try:
        found = listed(source)
        shares.total, shares.before = found.total, found.total - found.missing
        check_disk(source, found.missing)
        shares.report(0)
        logs.event(log, "fetching", model=source, bytes=found.missing, hub=hub_host())
        directory = snapshot_download(source, allow_patterns=DEFAULT_ALLOW_PATTERNS, tqdm_class=_bars(shares))
    except HUB_ERRORS as error:
        if shares.failure is not None:
            raise shares.failure from None
        logs.event(log, "not fetched", logging.WARNING, model=source, error=type(error).__name__)
        raise refusal(source, error) from None
    if shares.failure is not None:  # xet's threads swallow it
        raise shares.failure
    return Path(directory)


class NothingToLoad(FailedPrecondition):
    """A hub's model without the files that mlx-lm reads."""


@dataclass(frozen=True)
class Listing:
    """What a hub lists of a model. `sizes` are bytes of the files that mlx-lm reads, by name; `here` are those in the
    local cache. `element_bytes` are bytes of weights by safetensors' name of their dtype, as far as the hub knows.
    """

    revision: str
    sizes: Mapping[str, int]
    here: frozenset[str]
    element_bytes: Mapping[str, int]
    gated: bool

    @property
    def total(self) -> int:
        """Bytes of all files."""
        return sum(self.sizes.values())

    @property
    def missing(self) -> int:
        """Bytes that are not here."""
        return sum(size for name, size in self.sizes.items() if name not in self.here)


def listed(source: str) -> Listing:
    """Ask the hub for a model's files. Raises NothingToLoad, and HUB_ERRORS."""
    info = HfApi().model_info(source, timeout=_TIMEOUT, files_metadata=True)
    sizes = {file.rfilename: int(file.size or 0) for file in info.siblings or ()}
    sizes = {name: sizes[name] for name in matching(sizes, DEFAULT_ALLOW_PATTERNS)}
    weights = matching(sizes, [WEIGHTS])
    if CONFIG not in sizes or not weights:
        raise NothingToLoad(
            f"model {source!r} has no {CONFIG} or no {WEIGHTS} on {hub_host()}, which mlx-lm loads; take one that has"
        )
    here = {name for name in sizes if isinstance(try_to_load_from_cache(source, name, revision=info.sha), str)}
    counts = info.safetensors.parameters if info.safetensors else {}
    return Listing(
        revision=str(info.sha),
        sizes=sizes,
        here=frozenset(here),
        element_bytes=_element_bytes(counts, sum(sizes[name] for name in weights)),
        gated=bool(info.gated),
    )


def _element_bytes(counts: Mapping[str, int], file_bytes: int) -> dict[str, int]:
    """The weights' bytes by dtype. What does not add up to the files' size is not believed: "" is of no known dtype."""
    found = {dtype: count * _DTYPE_BYTES.get(dtype, 0) for dtype, count in counts.items()}
    return found if abs(sum(found.values()) - file_bytes) <= _BELIEVED * file_bytes else {"": file_bytes}


def check_disk(source: str, missing: int) -> None:
    """Raise FailedPrecondition where the cache's disk has no room for so many bytes."""
    cache = Path(constants.HF_HUB_CACHE)
    free = shutil.disk_usage(next(place for place in (cache, *cache.parents) if place.exists())).free
    if missing > free:
        raise FailedPrecondition(
            f"model {source!r} needs {missing} bytes in {cache}, where {free} are free; make room there, or set "
            "HF_HOME of the worker to a directory on a larger disk"
        )


class _Shares:
    """Reports the share of a download that is here, never less than before, from any thread; fields are bytes."""

    def __init__(self, progress: Callable[[float], None]) -> None:
        self.total = 0
        self.before = 0
        self.failure: BaseException | None = None
        self._progress = progress
        self._reported = -1.0
        self._lock = threading.Lock()

    def report(self, fetched: int) -> None:
        """So many bytes have come. Raises what `progress` has raised, again on every call."""
        with self._lock:
            if self.failure is not None:
                raise self.failure
            share = min(1.0, (self.before + fetched) / max(1, self.total))
            if share <= self._reported:
                return
            self._reported = share
            try:
                self._progress(share)
            except BaseException as failure:
                self.failure = failure
                raise


def _bars(shares: _Shares) -> type[Any]:
    """A class of bars that show nothing; those that count bytes report to `shares`."""

    class Bar(hub_tqdm):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            self._counts_bytes = kwargs.get("unit") == "B"
            super().__init__(*args, **{**kwargs, "disable": True})  # type: ignore[no-untyped-call]

        def update(self, n: float | None = 1) -> None:
            self.n += n or 0
            if self._counts_bytes:
                shares.report(int(self.n))

    return Bar


def refusal(source: str, error: Exception) -> AgentmemError:
    """Return what to do where fetching `source` raised `error`, one of HUB_ERRORS."""
    host, cache, model = hub_host(), constants.HF_HUB_CACHE, f"model {source!r}"
    status = error.response.status_code if isinstance(error, HfHubHTTPError) else 0
    directory = "or give a directory"
    match error:
        case HFValidationError():
            said = f"{model} is no directory here and no hub id, which would be OWNER/NAME"
        case HfHubHTTPError() if status in (401, 403, 404):
            said = (
                f"{model}: {host} has none that the worker may read ({status}): look at the spelling, accept its terms "
                f"there if it is gated, and set HF_TOKEN of the worker to a token that may read it, {directory}"
            )
        case HfHubHTTPError() if status == 429 or status >= 500:
            said = f"{model}: {host} answered {status}; complete files are kept, so load it again later"
            return Unavailable(said, _RETRY_SECONDS)
        case HfHubHTTPError():
            said = f"{model}: {host} answered {status}; look at the spelling, {directory}"
        case OSError(errno=number) if number in _UNUSABLE:
            said = (
                f"{model}: {cache} cannot be used ({os.strerror(number)}); mend that, or set HF_HOME of the worker to "
                "a directory on another disk"
            )
        case ValueError() | KeyError() | TypeError() | AttributeError() | AssertionError():
            said = f"{model}: {host} does not answer as a model hub does; check HF_ENDPOINT and the proxy, {directory}"
        case _:
            problem = "cannot be reached" if isinstance(error, (LocalEntryNotFoundError, _HTTP_ERROR)) else "broke off"
            said = f"{model}: {host} {problem}; complete files are kept, so load it again when the network is there"
            return Unavailable(f"{said}, {directory}", _RETRY_SECONDS)
    return FailedPrecondition(said)


def hub_host() -> str:
    """The host that models come from, as HF_ENDPOINT says; that may hold a password, and this does not."""
    return urlsplit(constants.ENDPOINT).hostname or "the hub"

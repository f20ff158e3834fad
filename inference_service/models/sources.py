"""Registered models' files, fetched from a hub if missing.

A cached model is used without asking, so that weights never change by themselves. Errors hold no URL and no token.
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
from agentmem.process.model_folders import CONFIG, WEIGHTS
from agentmem.process.model_registry import register
from agentmem.process.model_sources import DEMO, expanded, is_path
from agentmem.process.models import VARIABLE, RegisteredModel
from agentmem.process.settings import SettingsError
from inference_service.engine.mlx_lm_adapter import DEFAULT_ALLOW_PATTERNS, hf_repo_to_path
from inference_service.models.weight_files import is_whole, matching

log = logging.getLogger(__name__)

_TIMEOUT = 10.0
_DTYPE_BYTES: Final = {
    **{"F64": 8, "I64": 8, "U64": 8, "F32": 4, "I32": 4, "U32": 4, "F16": 2, "BF16": 2, "I16": 2, "U16": 2},
    **{"I8": 1, "U8": 1, "BOOL": 1, "F8_E4M3": 1, "F8_E5M2": 1},
}
_BELIEVED: Final = 0.02
"""Names and shapes take such a share of files."""

_DEMO_DIRECTORY = Path(__file__).parents[1] / "demo_model"

_HTTP_ERROR: Final[type[Exception]] = errors.HTTPError  # type: ignore[attr-defined]

HUB_ERRORS: Final[tuple[type[Exception], ...]] = (
    _HTTP_ERROR,
    OSError,
    XetDownloadError,
    RuntimeError,  # hf_xet's
    ValueError,  # names, and answers that are not JSON
    KeyError,
    TypeError,
    AttributeError,
    AssertionError,
)
"""Errors of huggingface_hub; the last five of answers that are not a hub's."""

_RETRY_SECONDS = 10.0
_UNUSABLE = frozenset(
    {errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EPERM, errno.EROFS, errno.EISDIR, errno.ENOTDIR, errno.EIO}
)


def registry(
    names: Sequence[str], adapters: Sequence[str] = (), file: Path | None = None
) -> dict[str, RegisteredModel]:
    """Return models as `register`, the default first. Raises SettingsError."""
    try:
        given = register(names, adapters, file)
    except ValueError as error:
        raise SettingsError(str(error)) from error
    return {name: replace(model, source=_place(model.source)) for name, model in given.items()}


def _place(source: str) -> str:
    if source == DEMO:
        return str(_DEMO_DIRECTORY)
    return str(expanded(source)) if is_directory(source) else source


def is_directory(source: str) -> bool:
    return expanded(source).is_dir()


def fetch(source: str, *, offline: bool, progress: Callable[[float], None]) -> Path:
    """Return a model's directory, downloaded if needed; not on the engine thread.

    `progress` gets the growing share on the download's threads, one at a time; its error ends the download. Raises
    FailedPrecondition and Unavailable.
    """
    path = expanded(source)
    if not path.is_dir():
        if is_path(source):
            raise FailedPrecondition(f"model {source!r}: {path} is not a directory; give the directory of a model")
        path = cached(source) or _fetched(source, offline, progress)
    progress(1.0)
    return path


def fetch_description(source: str) -> tuple[dict[str, Any], Mapping[str, int]] | None:
    """Return a hub model's config.json and weights' bytes; None if it is here, or offline. Raises FailedPrecondition
    and Unavailable.
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
    """Forbid huggingface_hub and transformers the network; they read the variable when imported."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    constants.HF_HUB_OFFLINE = True


def cached(source: str) -> Path | None:
    """Return the complete cached model. Raises FailedPrecondition for no hub id."""
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
    if shares.failure is not None:  # xet's threads swallow errors
        raise shares.failure
    return Path(directory)


class NothingToLoad(FailedPrecondition):
    """A hub's model without files that mlx-lm reads."""


@dataclass(frozen=True)
class Listing:
    """Bytes of files that mlx-lm reads, which of them are `here`, and weights' bytes by safetensors dtype."""

    revision: str
    sizes: Mapping[str, int]
    here: frozenset[str]
    element_bytes: Mapping[str, int]
    gated: bool

    @property
    def total(self) -> int:
        return sum(self.sizes.values())

    @property
    def missing(self) -> int:
        return sum(size for name, size in self.sizes.items() if name not in self.here)


def listed(source: str) -> Listing:
    """Raises NothingToLoad and HUB_ERRORS."""
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
    """Return bytes by dtype, or under "" if they do not add up."""
    found = {dtype: count * _DTYPE_BYTES.get(dtype, 0) for dtype, count in counts.items()}
    return found if abs(sum(found.values()) - file_bytes) <= _BELIEVED * file_bytes else {"": file_bytes}


def check_disk(source: str, missing: int) -> None:
    """Raise FailedPrecondition without room."""
    cache = Path(constants.HF_HUB_CACHE)
    free = shutil.disk_usage(next(place for place in (cache, *cache.parents) if place.exists())).free
    if missing > free:
        raise FailedPrecondition(
            f"model {source!r} needs {missing} bytes in {cache}, where {free} are free; make room there, or set "
            "HF_HOME to a directory on a larger disk"
        )


class _Shares:
    """A download's growing share. Any thread."""

    def __init__(self, progress: Callable[[float], None]) -> None:
        self.total = 0
        self.before = 0
        self.failure: BaseException | None = None
        self._progress = progress
        self._reported = -1.0
        self._lock = threading.Lock()

    def report(self, fetched: int) -> None:
        """Raises at every call what `progress` raised."""
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
    """Return silent progress bars that report to `shares`."""

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
    """Return what to do after one of HUB_ERRORS."""
    host, cache, model = hub_host(), constants.HF_HUB_CACHE, f"model {source!r}"
    status = error.response.status_code if isinstance(error, HfHubHTTPError) else 0
    directory = "or give a directory"
    match error:
        case HFValidationError():
            said = f"{model} is no directory here and no hub id, which would be OWNER/NAME"
        case HfHubHTTPError() if status in (401, 403, 404):
            said = (
                f"{model}: {host} has none that the worker may read ({status}): look at the spelling, accept its terms "
                f"there if it is gated, and set HF_TOKEN to a token that may read it, {directory}"
            )
        case HfHubHTTPError() if status == 429 or status >= 500:
            said = f"{model}: {host} answered {status}; complete files are kept, so try again later"
            return Unavailable(said, _RETRY_SECONDS)
        case HfHubHTTPError():
            said = f"{model}: {host} answered {status}; look at the spelling, {directory}"
        case OSError(errno=number) if number in _UNUSABLE:
            said = (
                f"{model}: {cache} cannot be used ({os.strerror(number)}); mend that, or set HF_HOME to a directory "
                "on another disk"
            )
        case ValueError() | KeyError() | TypeError() | AttributeError() | AssertionError():
            said = f"{model}: {host} does not answer as a model hub does; check HF_ENDPOINT and the proxy, {directory}"
        case _:
            problem = "cannot be reached" if isinstance(error, (LocalEntryNotFoundError, _HTTP_ERROR)) else "broke off"
            said = f"{model}: {host} {problem}; complete files are kept, so try again when the network is there"
            return Unavailable(f"{said}, {directory}", _RETRY_SECONDS)
    return FailedPrecondition(said)


def hub_host() -> str:
    return urlsplit(constants.ENDPOINT).hostname or "the hub"

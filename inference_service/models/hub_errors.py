"""What went wrong at a model hub, as errors of the contract. Their messages hold no URL and no token."""

import errno
from typing import Final
from urllib.parse import urlsplit

from huggingface_hub import constants, errors
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    XetDownloadError,
)

from agentmem.errors import AgentmemError, FailedPrecondition, Unavailable

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
    AssertionError,
)
"""What huggingface_hub raises, the last four for answers that are none of a hub's."""

_RETRY_SECONDS = 10.0
_TOO_MANY, _SERVER_FAILS = 429, 500
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_UNUSABLE = frozenset({errno.EACCES, errno.EPERM, errno.EROFS, errno.EISDIR, errno.ENOTDIR, errno.EIO})


def refusal(source: str, error: Exception) -> AgentmemError:
    """What to tell of `error`, one of HUB_ERRORS that fetching `source` raised: FailedPrecondition or Unavailable."""
    host = hub_host()
    if isinstance(error, HFValidationError):
        return FailedPrecondition(f"model {source!r} is no directory here and no hub id, which would be OWNER/NAME")
    if isinstance(error, GatedRepoError):
        return FailedPrecondition(
            f"model {source!r} is gated on {host}: accept its terms there, and set HF_TOKEN of the worker to a token "
            "of that account, or give a directory"
        )
    if isinstance(error, RepositoryNotFoundError):
        return FailedPrecondition(
            f"{host} has no model {source!r}, or it is private: look at the spelling, set HF_TOKEN of the worker for a "
            "private one, or give a directory"
        )
    if isinstance(error, HfHubHTTPError):
        return _by_status(source, host, error.response.status_code)
    if isinstance(error, OSError) and error.errno in _FULL:
        return FailedPrecondition(
            f"model {source!r}: the disk of {constants.HF_HUB_CACHE} is full; make room there, or set HF_HOME of the "
            "worker to a directory on a larger disk"
        )
    if isinstance(error, OSError) and error.errno in _UNUSABLE:
        return FailedPrecondition(
            f"model {source!r}: {constants.HF_HUB_CACHE} cannot be used ({error.strerror}); mend that, or set "
            "HF_HOME of the worker to another directory"
        )
    if isinstance(error, ValueError | KeyError | TypeError | AssertionError):
        return FailedPrecondition(
            f"model {source!r}: {host} does not answer as a model hub does; check HF_ENDPOINT and the proxy, or give a "
            "directory"
        )
    problem = "cannot be reached" if isinstance(error, (LocalEntryNotFoundError, _HTTP_ERROR)) else "broke off"
    return Unavailable(
        f"model {source!r}: {host} {problem}; files that came whole are kept, so load it again when the network is "
        "there, or give a directory",
        _RETRY_SECONDS,
    )


def hub_host() -> str:
    """The host that models come from, as HF_ENDPOINT says; that may hold a password, and this does not."""
    return urlsplit(constants.ENDPOINT).hostname or "the hub"


def _by_status(source: str, host: str, status: int) -> AgentmemError:
    if status == _TOO_MANY or status >= _SERVER_FAILS:
        return Unavailable(
            f"model {source!r}: {host} answered {status}; files that came whole are kept, so load it again later",
            _RETRY_SECONDS,
        )
    if status in (401, 403):
        return FailedPrecondition(
            f"model {source!r}: {host} refuses ({status}); set HF_TOKEN of the worker to a token that may read it, or "
            "give a directory"
        )
    return FailedPrecondition(f"model {source!r}: {host} answered {status}; look at the spelling, or give a directory")

import errno
import json

import pytest
from huggingface_hub.errors import LocalEntryNotFoundError, XetDownloadError

from agentmem.errors import FailedPrecondition, Unavailable
from inference_service.models.sources import HUB_ERRORS, hub_host, refusal

SECRET = "https://user:hf_secret@cdn.example/x?signature=abc"


@pytest.mark.parametrize(
    ("error", "kind", "said"),
    [
        (OSError(errno.ENOSPC, SECRET), FailedPrecondition, r"cannot be used \(No space left"),
        (OSError(errno.EDQUOT, SECRET), FailedPrecondition, "cannot be used .*set HF_HOME"),
        (
            PermissionError(errno.EACCES, "Permission denied", SECRET),
            FailedPrecondition,
            r"cannot be used \(Permission",
        ),
        (OSError(errno.EROFS, "Read-only file system"), FailedPrecondition, "cannot be used"),
        (OSError(f"Consistency check failed {SECRET}"), Unavailable, "broke off; complete files are kept"),
        (ConnectionResetError(errno.ECONNRESET, SECRET), Unavailable, "broke off"),
        (LocalEntryNotFoundError(SECRET), Unavailable, "cannot be reached"),
        (XetDownloadError(SECRET), Unavailable, "broke off"),
        (RuntimeError(SECRET), Unavailable, "broke off"),
        (json.JSONDecodeError(SECRET, "", 0), FailedPrecondition, "does not answer as a model hub does"),
        (AttributeError(SECRET), FailedPrecondition, "does not answer as a model hub does"),
        (KeyError("sha"), FailedPrecondition, "does not answer as a model hub does"),
        (AssertionError(SECRET), FailedPrecondition, "does not answer as a model hub does"),
    ],
)
def test_what_is_told(error: Exception, kind: type[Exception], said: str) -> None:
    assert isinstance(error, HUB_ERRORS)
    told = refusal("org/model", error)
    assert type(told) is kind
    with pytest.raises(kind, match=said):
        raise told
    assert "'org/model'" in told.message
    assert "secret" not in told.message and "://" not in told.message


def test_the_hubs_host_comes_without_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "https://user:hf_secret@mirror.example:8443/hub")
    assert hub_host() == "mirror.example"

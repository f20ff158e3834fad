"""Who we are to S3, from where AWS's own tools look. Never from our settings, so that no secret is in them or in a log.

obstore reads the environment (AWS_ACCESS_KEY_ID and its siblings) and asks for the identities of EC2, ECS and EKS. It
does not read the files that `aws configure` writes, so this does.
"""

import configparser
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from obstore.store import S3Credential

# Each of these says that the environment names an identity; a file doesn't override it.
_IN_ENVIRONMENT = (
    "AWS_ACCESS_KEY_ID",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
)


def from_files(environment: Mapping[str, str] = os.environ) -> "Callable[[], S3Credential] | None":
    """What reads the profile's key from the shared files, at each use, so that a rotated key is taken up.

    None if the environment names an identity, or there is no key in the files. Profiles that name a role or a login
    have none; put the keys that they give into the environment (`aws configure export-credentials`).
    """
    if any(environment.get(name) for name in _IN_ENVIRONMENT) or _read(environment) is None:
        return None

    def read() -> "S3Credential":
        credential = _read(environment)
        if credential is None:
            raise ValueError("the AWS credentials file has no key for this profile any more")
        return credential

    return read


def region(environment: Mapping[str, str] = os.environ) -> str | None:
    """The profile's region, where the environment names none; None if nothing does."""
    if environment.get("AWS_REGION") or environment.get("AWS_DEFAULT_REGION"):
        return None
    profile = environment.get("AWS_PROFILE", "default")
    config = _parsed(environment, "AWS_CONFIG_FILE", "config")
    return config.get("default" if profile == "default" else f"profile {profile}", "region", fallback=None)


def _read(environment: Mapping[str, str]) -> "S3Credential | None":
    profile = environment.get("AWS_PROFILE", "default")
    found = _parsed(environment, "AWS_SHARED_CREDENTIALS_FILE", "credentials")
    key = found.get(profile, "aws_access_key_id", fallback=None)
    secret = found.get(profile, "aws_secret_access_key", fallback=None)
    if not key or not secret:
        return None
    credential: S3Credential = {"access_key_id": key, "secret_access_key": secret, "expires_at": None}
    if token := found.get(profile, "aws_session_token", fallback=None):
        credential["token"] = token
    return credential


def _parsed(environment: Mapping[str, str], variable: str, name: str) -> configparser.RawConfigParser:
    parser = configparser.RawConfigParser()
    try:
        parser.read(Path(environment.get(variable) or f"~/.aws/{name}").expanduser(), encoding="utf-8")
    except (configparser.Error, UnicodeDecodeError):
        return configparser.RawConfigParser()
    return parser

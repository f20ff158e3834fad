"""Settings of a service: flags, then environment, then a TOML file; an unknown key is an error.

Each service has one settings class with `env_prefix` such as `AGENTMEM_STORE_`. `load` fills it and, on a mistake, says
which key is wrong and where it came from.
"""

import os
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from pydantic import Field, ValidationError
from pydantic_settings import (
    BaseSettings,
    CliSettingsSource,
    InitSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)
from pydantic_settings.exceptions import SettingsError as UnreadableSetting

CONFIG_VARIABLE = "AGENTMEM_CONFIG"
"""The environment variable that names the TOML file."""

TABLES = frozenset(("up", "gateway", "worker", "store"))
"""Tables of the TOML file."""

_Settings = TypeVar("_Settings", bound="ServiceSettings")


class ServiceSettings(BaseSettings):
    """Base of the settings classes. Subclasses set `model_config` with `env_prefix` and `cli_prog_name`."""

    model_config = SettingsConfigDict(
        extra="forbid", cli_kebab_case=True, cli_implicit_flags=True, cli_hide_none_type=True
    )
    toml_table: ClassVar[str]
    """The table of the TOML file that this class reads; other services' tables are left to them."""

    log_level: str = Field("info", description="debug, info, warning or error")
    log_format: str = Field("text", pattern="^(text|json)$", description="text or json")

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - the base class names them
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        assert issubclass(settings_cls, ServiceSettings)
        return (init_settings, env_settings, InitSettingsSource(settings_cls, _toml_table(settings_cls.toml_table)))


class SettingsError(Exception):
    """A setting is wrong; the message says which and what it should be."""


def load(settings_cls: type[_Settings], arguments: Sequence[str] | None = None) -> _Settings:
    """The settings from `arguments` (default: the command line), environment and TOML file.

    Raises SettingsError for unknown or ill-formed settings. `--help` prints and exits, as does an unknown flag.
    """
    _refuse_unknown_variables(settings_cls)
    try:
        cli: CliSettingsSource[Any] = CliSettingsSource(
            settings_cls, cli_parse_args=list(sys.argv[1:] if arguments is None else arguments)
        )
        return settings_cls(_cli_settings_source=cli)  # type: ignore[call-arg]
    except UnreadableSetting as error:
        raise SettingsError(f'{error}; lists are JSON in the environment, such as ["demo"]') from error
    except ValidationError as error:
        problems = "; ".join(
            f"{'.'.join(map(str, e['loc'])) or 'settings'}: {e['msg'].removeprefix('Value error, ')}"
            for e in error.errors()
        )
        raise SettingsError(problems) from error


def _refuse_unknown_variables(settings_cls: type[ServiceSettings]) -> None:
    prefix = settings_cls.model_config.get("env_prefix", "")
    known = {f"{prefix}{name}".upper() for name in settings_cls.model_fields}
    unknown = sorted(name for name in os.environ if prefix and name.startswith(prefix) and name not in known)
    if unknown:
        raise SettingsError(
            f"unknown environment variables: {', '.join(unknown)}; known are {', '.join(sorted(known))}"
        )


def _toml_table(name: str) -> dict[str, Any]:
    path = os.environ.get(CONFIG_VARIABLE)
    if not path:
        return {}
    try:
        tables = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(f"{CONFIG_VARIABLE} names {path}, which cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise SettingsError(f"{path} is not TOML: {error}") from error
    if unknown := sorted(tables.keys() - TABLES):
        raise SettingsError(f"{path} has unknown tables: {', '.join(unknown)}; known are {', '.join(sorted(TABLES))}")
    table = tables.get(name, {})
    if not isinstance(table, dict):
        raise SettingsError(f"{path}: {name} must be a table, [{name}]")
    return {key.replace("-", "_"): value for key, value in table.items()}


__all__ = ["CONFIG_VARIABLE", "TABLES", "ServiceSettings", "SettingsError", "load"]

"""Settings of a service: flags, then environment, then a TOML file; unknown keys are errors."""

import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, Literal, TypeVar, get_args, get_origin

import click
from pydantic import AfterValidator, Field, ValidationError, ValidationInfo, field_validator
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails
from pydantic_settings import (
    BaseSettings,
    InitSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)
from pydantic_settings.exceptions import SettingsError as UnreadableSetting

from agentmem.diagnostics import FileError, TomlFile, did_you_mean, unsupported
from agentmem.process.sockets import OptionalCollector

CONFIG_VARIABLE = "AGENTMEM_CONFIG"

TABLES = frozenset(("up", "gateway", "worker", "store"))

MAX_INTEGER: Final = 2**63 - 1
"""The limit of SQLite and protobuf."""

MAX_SECONDS: Final = 1e9
"""31 years: the limit of timers."""

HELP_WIDTH: Final = 100

_METAVARS: Final = {Path: "PATH", int: "N", float: "N", dict: "NAME=N"}

_FORM: Final = re.compile(r"[A-Z]+[:+=_][A-Z:+=_]*[A-Z]")
"""A value's form."""

LOG_LEVELS = ("debug", "info", "warning", "error")

_Settings = TypeVar("_Settings", bound="ServiceSettings")


def _known_level(value: str) -> str:
    if value.lower() not in LOG_LEVELS:
        raise ValueError(f"{value!r} is none of {', '.join(LOG_LEVELS)}")
    return value.lower()


class ServiceSettings(BaseSettings):
    """Base class. Subclasses set `model_config` with `env_prefix` and `cli_prog_name`."""

    model_config = SettingsConfigDict(extra="forbid", allow_inf_nan=False)
    toml_table: ClassVar[str]

    log_level: Annotated[str, AfterValidator(_known_level)] = Field(
        "info", description=f"how much is logged: {', '.join(LOG_LEVELS)}"
    )
    log_format: str = Field("text", pattern="^(text|json)$", description="text or json")
    otlp: OptionalCollector = Field(
        "",
        description="HOST:PORT, or https://HOST:PORT, of a collector that takes traces by OTLP over gRPC (default: what"
        " OTEL_EXPORTER_OTLP_ENDPOINT says, else none)",
    )

    @field_validator("*", mode="before")
    @classmethod
    def _text_as_its_type(cls, value: Any, info: ValidationInfo) -> Any:
        """Convert whole-number choices, which pydantic does not, and refuse empty paths."""
        assert info.field_name is not None
        kind = cls.model_fields[info.field_name].annotation
        if value == "" and Path in (kind, *get_args(kind)):
            raise ValueError("must not be empty")
        if isinstance(value, str):
            return next((choice for choice in _choices(kind) if str(choice) == value), value)
        return value

    @field_validator("*")
    @classmethod
    def _bounded(cls, value: Any) -> Any:
        for number in value.values() if isinstance(value, dict) else [value]:
            limit = {int: MAX_INTEGER, float: MAX_SECONDS}.get(type(number))
            if limit is not None and number > limit:
                raise ValueError(f"must be at most {limit:.0f}")
        return value

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
    """The message names the setting and what it should be."""


def load(settings_cls: type[_Settings], arguments: Sequence[str] | None = None) -> _Settings:
    """Load settings from `arguments` (default: the command line), environment and TOML file.

    Raises SettingsError. `-h` and `--help` print and exit.
    """
    program = settings_cls.model_config["cli_prog_name"]
    command = click.Command(program, params=[*options(settings_cls)], help=settings_cls.__doc__)
    words = sys.argv[1:] if arguments is None else [*arguments]
    try:
        names = ["-h", "--help"]
        with command.make_context(program, words, max_content_width=HELP_WIDTH, help_option_names=names) as context:
            return loaded(settings_cls, context.params)
    except click.exceptions.Exit as ended:
        raise SystemExit(ended.exit_code) from None
    except click.UsageError as error:
        raise SettingsError(error.format_message()) from error


def loaded(settings_cls: type[_Settings], given: Mapping[str, Any]) -> _Settings:
    """Load settings from the values of `options`, environment and TOML file. Raises SettingsError."""
    _refuse_unknown_variables(settings_cls)
    said = {name: value for name, value in given.items() if value not in (None, ())}
    for name, value in said.items():
        kind = get_origin(settings_cls.model_fields[name].annotation)
        if kind in (list, dict):
            said[name] = _repeated(f"--{name.replace('_', '-')}", kind, value)
    try:
        return settings_cls(**said)
    except UnreadableSetting as error:
        raise SettingsError(
            f'{error}; lists and mappings are JSON in the environment, such as ["demo"] or {{"a": 1}}'
        ) from error
    except ValidationError as error:
        raise SettingsError("\n".join(_problem(settings_cls, details) for details in error.errors())) from error


def options(settings_cls: type[ServiceSettings]) -> Iterator[click.Option]:
    """Yield an option for each setting; values of lists and mappings are repeated."""
    for name, field in settings_cls.model_fields.items():
        flag, kind, said = name.replace("_", "-"), field.annotation, _help(field)
        if kind is bool:
            yield click.Option([f"--{flag}/--no-{flag}"], default=None, help=said)
            continue
        kinds = (get_origin(kind), kind, *get_args(kind))
        form = _FORM.match(field.description or "")
        usual = next((_METAVARS[each] for each in kinds if each in _METAVARS), form[0] if form else "TEXT")
        choices = [*map(str, _choices(kind)), *(["N"] if int in kinds else [])]
        metavar = f"[{'|'.join(choices)}]" if _choices(kind) else usual
        several = get_origin(kind) in (list, dict)
        yield click.Option([f"--{flag}"], multiple=several, default=None, metavar=metavar, help=said)


def _help(field: FieldInfo) -> str:
    """Return a description and the default in click's style."""
    said, is_said, words = (field.description or "").partition(" (default: ")
    words, _, more = words.partition(")") if is_said else (default_of(field), "", "")
    begins = said[:1].upper() + said[1:] if re.match(r"[a-z]+([ ,'-]|: |$)", said) else said
    return f"{begins}{more}.{f'  [default: {words}]' if words else ''}"


def _repeated(flag: str, kind: type, values: Sequence[str]) -> list[str] | dict[str, str]:
    """Raises SettingsError."""
    for value in values:
        if kind is dict and value.count("=") != 1:
            raise SettingsError(f"{flag} {value}: write NAME=N, and repeat the flag for each name")
        if kind is list and value.startswith('["'):
            raise SettingsError(f"{flag} {value}: is JSON, which the environment takes; repeat the flag for each value")
    return dict(value.split("=") for value in values) if kind is dict else list(values)


def _choices(kind: Any) -> tuple[Any, ...]:
    return next((get_args(each) for each in (kind, *get_args(kind)) if get_origin(each) is Literal), ())


def default_of(field: FieldInfo) -> str:
    """Return a setting's default as text, or ""."""
    value: Any = field.get_default(call_default_factory=True, validated_data={})
    if isinstance(value, bool):
        return "on" if value else "off"
    return str(value).replace(str(Path.home()), "~", 1) if value or value == 0 else ""


def _problem(settings_cls: type[ServiceSettings], details: ErrorDetails) -> str:
    """Return one mistake in our words, with its key if it is in the file."""
    if not details["loc"]:  # several settings together, which the message names
        return details["msg"].removeprefix("Value error, ")
    key = str(details["loc"][0])
    field = settings_cls.model_fields.get(key)
    file = _toml_file()
    table = _toml_table(settings_cls.toml_table)
    if details["type"] == "extra_forbidden":
        known = [name.replace("_", "-") for name in settings_cls.model_fields]
        said = unsupported(key.replace("_", "-"), known)
    elif details["type"] == "string_pattern_mismatch" and field is not None:
        said = f"{details['input']!r} is not allowed: {field.description}"
    else:
        said = in_words(details)
    if file is not None and key in table and table[key] == details["input"]:  # flags and variables take precedence
        return file.diagnostic((settings_cls.toml_table, key.replace("_", "-")), said).render(file.path)
    return f"{key}: {said}"


def in_words(details: ErrorDetails) -> str:
    limits = details.get("ctx", {})
    return {
        "float_parsing": f"{details['input']!r} is not a number",
        "int_parsing": f"{details['input']!r} is not a whole number",
        "float_type": "must be a number",
        "finite_number": "must be a finite number",
        "int_type": "must be a whole number",
        "bool_type": "must be true or false",
        "greater_than": f"must be greater than {limits.get('gt')}",
        "greater_than_equal": f"must be at least {limits.get('ge')}",
        "less_than_equal": f"must be at most {limits.get('le')}",
        "string_type": "must be text",
        "string_too_short": "must not be empty",
        "list_type": "must be a list",
        "dict_type": "must be a table",
        "model_type": "must be a table",
        "literal_error": f"must be {limits.get('expected')}",
    }.get(details["type"], details["msg"].removeprefix("Value error, "))


def _refuse_unknown_variables(settings_cls: type[ServiceSettings]) -> None:
    prefix = settings_cls.model_config.get("env_prefix", "")
    known = sorted(f"{prefix}{name}".upper() for name in settings_cls.model_fields)
    unknown = sorted(name for name in os.environ if prefix and name.startswith(prefix) and name not in known)
    if unknown:
        raise SettingsError("\n".join(f"{name} {unsupported(name, known, prefix)}" for name in unknown))


def _toml_file() -> TomlFile | None:
    """Return the file that CONFIG_VARIABLE names, if any. Raises SettingsError."""
    if not (path := os.environ.get(CONFIG_VARIABLE)):
        return None
    try:
        file = TomlFile.read(Path(path))
    except FileError as error:
        raise SettingsError(f"{CONFIG_VARIABLE}: {error}") from error
    problems = [
        file.diagnostic((name,), f"is no table; tables are {', '.join(sorted(TABLES))}{did_you_mean(name, TABLES)}")
        for name in file.data.keys() - TABLES
    ]
    problems += [
        file.diagnostic((name,), f"must be a table, [{name}]")
        for name in file.data.keys() & TABLES
        if not isinstance(file.data[name], dict)
    ]
    if problems:
        raise SettingsError(str(FileError(path, *sorted(problems, key=lambda one: one.line))))
    return file


def _toml_table(name: str) -> dict[str, Any]:
    file = _toml_file()
    return {key.replace("-", "_"): value for key, value in file.data.get(name, {}).items()} if file else {}

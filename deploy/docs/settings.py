"""The settings of the three services and of `agentmem up`, from their pydantic classes."""

from inspect import cleandoc
from pathlib import Path
from typing import Any

from pydantic.fields import FieldInfo

from agentmem.process.settings import ServiceSettings
from cache_service.settings import StoreSettings
from deploy.docs.tables import code, table
from gateway.cli.up.settings import UpSettings
from gateway.settings import GatewaySettings
from inference_service.settings import WorkerSettings

CLASSES: tuple[type[ServiceSettings], ...] = (UpSettings, GatewaySettings, WorkerSettings, StoreSettings)


def page() -> str:
    """Return a section with a table for each class."""
    return "\n".join(_section(settings) for settings in CLASSES)


def flags(settings: type[ServiceSettings]) -> list[str]:
    """Return all flags of a class, such as `--pool-bytes`."""
    return [flag for name, field in settings.model_fields.items() for flag in _flags(name, field)]


def _section(settings: type[ServiceSettings]) -> str:
    config = settings.model_config
    rows = [
        (
            ", ".join(code(flag) for flag in _flags(name, field)),
            code(f"{config['env_prefix']}{name}".upper()),
            _default(field),
            field.description or "",
        )
        for name, field in settings.model_fields.items()
    ]
    about = cleandoc(settings.__doc__ or "").partition("\n\n")[0]
    return f"## {config['cli_prog_name']}\n\n{about} TOML table: `[{settings.toml_table}]`.\n\n" + table(
        ("flag", "variable", "default", "meaning"), rows
    )


def _flags(name: str, field: FieldInfo) -> list[str]:
    flag = name.replace("_", "-")
    return [f"--{flag}", f"--no-{flag}"] if field.annotation is bool else [f"--{flag}"]


def _default(field: FieldInfo) -> str:
    value: Any = field.get_default(call_default_factory=True, validated_data={})
    if value is None or value in ("", [], {}):
        return ""
    if isinstance(value, bool):
        return code("on" if value else "off")
    if isinstance(value, Path):
        return code(str(value).replace(str(Path.home()), "~", 1))
    return code(f"{value:g}" if isinstance(value, float) else value)

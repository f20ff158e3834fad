"""The settings of the three services and of `agentmem up`, from their pydantic classes."""

from inspect import cleandoc

import click

from agentmem.process.settings import ServiceSettings, default_of, options
from cache_service.settings import StoreSettings
from deploy.docs.tables import code, table
from gateway.cli.up.settings import UpSettings
from gateway.settings import GatewaySettings
from inference_service.settings import WorkerSettings

CLASSES: tuple[type[ServiceSettings], ...] = (UpSettings, GatewaySettings, WorkerSettings, StoreSettings)


def page() -> str:
    return "\n".join(_section(settings) for settings in CLASSES)


def flags(settings: type[ServiceSettings]) -> list[str]:
    return [flag for option in options(settings) for flag in _flags(option)]


def _section(settings: type[ServiceSettings]) -> str:
    config = settings.model_config
    rows = [
        (
            ", ".join(map(code, _flags(option))),
            code(f"{config['env_prefix']}{option.name}".upper()),
            code(default_of(field)),
            field.description or "",
        )
        for option, field in zip(options(settings), settings.model_fields.values(), strict=True)
    ]
    about = cleandoc(settings.__doc__ or "").partition("\n\n")[0]
    return f"## {config['cli_prog_name']}\n\n{about} TOML table: `[{settings.toml_table}]`.\n\n" + table(
        ("flag", "variable", "default", "meaning"), rows
    )


def _flags(option: click.Option) -> list[str]:
    return [*option.opts, *option.secondary_opts]

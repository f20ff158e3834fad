"""Parameters of `agentmem up` and `agentmem doctor`: the settings in groups, and words of other servers."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

import click

from agentmem import layout
from agentmem.addresses import parse_address
from agentmem.console import Mistake
from agentmem.process.settings import HELP_WIDTH, options
from gateway.cli.up.settings import UpSettings

_GROUPS: Final[Mapping[str, tuple[str, ...]]] = {
    "Everyday": ("model", "context_length", "http", "keys", "data", "offline"),
    "Models and memory": ("models", "adapter", "loaded_models", "kv_bits", "remote"),
    "Addresses, and who may call": (
        *("grpc", "allowed_host", "ui", "tls_cert", "tls_key", "tls_client_ca", "metrics"),
    ),
    "The processes": ("run_dir", "grace", "log_level", "log_format", "otlp"),
    "A node of a cluster": (
        *("cluster", "cluster_survives", "cluster_keys", "cluster_tls", "node", "advertise", "node_listen"),
    ),
}

_SAME: Final[Mapping[str, tuple[str, ...]]] = {
    "model": ("-m",),
    "context_length": ("--ctx-size", "--max-model-len", "--num-ctx", "-c"),
    "tls_cert": ("--ssl-certfile",),
    "tls_key": ("--ssl-keyfile",),
}
"""Flags of other servers for our settings."""

_ANSWERS: Final[Mapping[str, str]] = {
    "--api-key": "`agentmem keys create` makes a key, and `agentmem up --keys FILE` asks for it",
    "--served-model-name": "write --model NAME=PATH_OR_HUB_ID",
    "--dtype": "set AGENTMEM_WORKER_DTYPE",
    "--gpu-memory-utilization": "set AGENTMEM_WORKER_POOL_BYTES for agents' KV, or AGENTMEM_WORKER_FREE_MEMORY_FLOOR",
    "--max-num-seqs": "set AGENTMEM_WORKER_MAX_REQUESTS",
    "--parallel": "set AGENTMEM_WORKER_MAX_REQUESTS; turns run together without it",
    "--kv-cache-dtype": "write --kv-bits 4, 8 or auto",
    "--cache-type-k": "write --kv-bits 4, 8 or auto",
    "--download-dir": "set HF_HOME",
    "--allowed-origins": "set AGENTMEM_GATEWAY_CORS_ORIGIN",
    "--cors": "set AGENTMEM_GATEWAY_CORS_ORIGIN='[\"*\"]'",
    "--config": "set AGENTMEM_CONFIG, a TOML file",
    "--verbose": "write --log-level debug",
    "--debug": "write --log-level debug",
    "--detach": "it runs until Ctrl-C; deploy/systemd and deploy/launchd have services",
    "-d": "it runs until Ctrl-C; deploy/systemd and deploy/launchd have services",
    "-v": "write --log-level debug",
}


class UpCommand(click.Command):
    """A command that gets settings as `up_settings` takes them, and answers other servers' flags with ours."""

    def __init__(self, name: str | None, params: list[click.Parameter] | None = None, **given: Any) -> None:
        models = click.Argument(["named_models"], nargs=-1, metavar="[MODEL]...")
        given.setdefault("context_settings", {})["max_content_width"] = HELP_WIDTH
        super().__init__(name, params=[models, *options(UpSettings), *_habits(), *(params or [])], **given)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            rest = super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            if answer := _ANSWERS.get(error.option_name):
                raise Mistake(f"{error.option_name}: {answer}") from error
            raise
        if not ctx.resilient_parsing:
            ctx.params = understood(ctx.params)
        return rest

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        records = {each.name: each.get_help_record(ctx) for each in self.get_params(ctx) if each.name != "named_models"}
        rest = [name for name in records if name not in {each for names in _GROUPS.values() for each in names}]
        for heading, names in (*_GROUPS.items(), ("Other", rest)):
            if rows := [row for name in names if (row := records.get(name))]:
                with formatter.section(heading):
                    formatter.write_dl(rows)


def _habits() -> Iterator[click.Option]:
    for name, flags in _SAME.items():
        yield click.Option([*flags, f"same_{name}"], multiple=name == "model", hidden=True)
    yield click.Option(["--host"], hidden=True)
    yield click.Option(["--port"], hidden=True)


def understood(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings, for which others' flags are among `given`. Raises Mistake for one that is given twice."""
    meant = dict(given)
    host, port = meant.pop("host"), meant.pop("port")
    for name, flags in _SAME.items():
        value = meant.pop(f"same_{name}")
        if name == "model":
            meant["model"] = (*meant.pop("named_models"), *meant["model"], *value)
        elif value is not None:
            if meant[name] is not None:
                raise Mistake(f"{flags[0]} is --{name.replace('_', '-')}, which is given, too; leave one out")
            meant[name] = value
    if host is not None or port is not None:
        if meant["http"] is not None:
            raise Mistake("--http has host and port; leave --host and --port out")
        usual = parse_address(layout.HTTP)
        at = (host or usual.host).strip("[]")
        meant["http"] = f"[{at}]:{port or usual.port}" if ":" in at else f"{at}:{port or usual.port}"
    return meant

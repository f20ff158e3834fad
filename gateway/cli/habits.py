"""Commands of Ollama, LM Studio and vLLM: each is understood, or answered with the one that does it."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import click

from agentmem.commands import Commands, mistake
from agentmem.words import printable

_SAME: Final[Mapping[str, tuple[str, ...]]] = {
    **dict.fromkeys(("serve", "start"), ("up",)),
    **dict.fromkeys(("pull", "get", "download"), ("models", "pull")),
    **dict.fromkeys(("list", "ls", "ps"), ("models", "list")),
    **{name: ("models", name) for name in ("load", "search", "show", "unload")},
}

_ANSWERS: Final[Mapping[str, str]] = {
    **dict.fromkeys(
        ("rm", "delete", "remove"),
        "`agentmem agents delete AGENT` deletes a memory; a downloaded model is in the hub's cache, and "
        "`hf cache rm model/OWNER/NAME` deletes it",
    ),
    **dict.fromkeys(
        ("create", "cp", "push", "import"),
        "a model gets its name where it is served, `agentmem up --model NAME=DIRECTORY`, and its settings by --models",
    ),
    "status": "`agentmem models` shows which models are loaded, `agentmem top` what runs, `agentmem doctor` what is "
    "wrong",
    "logs": "`agentmem up` writes to logs/up.log in its --data, at a terminal or started by `chat` or `launch`",
    "help": "`agentmem --help`, or `agentmem COMMAND --help`",
    "version": "`agentmem --version`",
}
_WORKFLOW_FILES: Final = (".yaml", ".yml", ".json")
_WORKFLOW_FLAGS: Final = frozenset({"--set", "--resume", "--request-id", "--check", "--schema"})


class Habits(Commands):
    """A group that understands `_SAME`, answers `_ANSWERS`, and runs a model where `run` names no workflow."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        return super().resolve_command(ctx, args if ctx.resilient_parsing else understood(args, self.commands))


def understood(words: Sequence[str], commands: Mapping[str, Any]) -> list[str]:
    """Return the words with our names for another program's. Raises Mistake with what to type instead."""
    name, *rest = words
    if name in _ASKED:
        return _ASKED[name](rest, words)
    if name in commands:
        return list(words)
    if name in _ANSWERS:
        raise mistake(f"agentmem {name}: {_ANSWERS[name]}")
    return [*_SAME.get(name, (name,)), *rest]


def _run(rest: Sequence[str], words: Sequence[str]) -> list[str]:
    ours = any(word.partition("=")[0] in _WORKFLOW_FLAGS for word in rest)
    if ours or not rest or rest[0].startswith("-") or not _may_be_a_model(rest[0]):
        return list(words)
    model, *more = rest
    click.secho(f"no workflow file: understood as `agentmem chat --model {printable(model)}`", dim=True, err=True)
    message = ["--message", more.pop(0)] if more and not more[0].startswith("-") else []
    return ["chat", "--model", model, *message, *more]


def _may_be_a_model(text: str) -> bool:
    path = Path(text)
    if path.is_dir():
        return (path / "config.json").exists()
    return bool(text) and not path.exists() and path.suffix.lower() not in _WORKFLOW_FILES


def _stop(rest: Sequence[str], words: Sequence[str]) -> list[str]:
    return ["models", "unload", *rest] if rest else _down(rest, words)


def _down(_: Sequence[str], words: Sequence[str]) -> list[str]:
    ways = "Ctrl-C where `agentmem up` runs, or `systemctl --user stop agentmem` where it is a service"
    try:
        from gateway.cli.up.lock import running
    except ModuleNotFoundError:  # no services are installed
        raise mistake(f"agentmem {words[0]}: {ways}") from None
    data, holder = running()
    here = f"`kill {holder['pid']}`, or " if holder else f"nothing runs on {data}; elsewhere "
    raise mistake(f"agentmem {words[0]}: {here}{ways}")


def _server(rest: Sequence[str], words: Sequence[str]) -> list[str]:
    if rest[:1] == ["stop"]:
        return _down(rest, words)
    return ["up", *rest[1:]] if rest[:1] == ["start"] else list(words)


_ASKED: Final[Mapping[str, Callable[[Sequence[str], Sequence[str]], list[str]]]] = {
    "down": _down,
    "run": _run,
    "server": _server,
    "stop": _stop,
}

"""The model that is wanted, before anything starts: `agentmem up` wants the default one, a chat its own."""

import os
import ssl
import threading
import urllib.error
import urllib.request
from http import HTTPStatus
from http.client import HTTPException
from pathlib import Path
from typing import Final
from urllib.parse import quote, urlsplit

from agentmem.console import Mistake
from agentmem.process.model_cache import has_token, here, is_offline, snapshot
from agentmem.process.model_folders import folder_problem
from agentmem.process.model_registry import register
from agentmem.process.model_sources import DEMO, expanded
from agentmem.process.models import RegisteredModel
from gateway.cli.up.settings import UpSettings

HUB_SECONDS: Final = 5.0
_NONE: Final = frozenset({HTTPStatus.UNAUTHORIZED, HTTPStatus.NOT_FOUND})


def default_of(settings: UpSettings) -> RegisteredModel:
    """Raises ValueError."""
    return next(iter(_registered(settings).values()))


def check_model(settings: UpSettings, name: str = "") -> None:
    """Raise Mistake for a model that cannot be loaded, by what is on this machine. Raises ValueError."""
    model = _registered(settings)[name] if name else default_of(settings)
    if model.source == DEMO:
        return
    directory = _place(model.source)
    if directory is not None:
        if problem := folder_problem(directory):
            raise Mistake(f"model {model.model_id!r} cannot be loaded from {directory}: {problem}")
    elif settings.offline or is_offline():
        raise Mistake(
            f"model {model.model_id!r} is not downloaded, and --offline or a variable (AGENTMEM_OFFLINE, "
            f"HF_HUB_OFFLINE) forbids the network; {here()}"
        )


def check_hub(settings: UpSettings, name: str = "") -> None:
    """Raise Mistake if a model has to be downloaded, and its hub does not give it.

    Without a name, where other models than the default are registered, those are served, and the worker tries again.
    Raises ValueError.
    """
    registered = _registered(settings)
    model = registered[name] if name else default_of(settings)
    if model.source == DEMO or _place(model.source) is not None or settings.offline or is_offline():
        return
    if not name and any(each.source not in (DEMO, model.source) for each in registered.values()):
        return
    if problem := hub_problem(model.source):
        raise Mistake(f"model {model.model_id!r} is not downloaded, and {problem}; {here()}")


def _registered(settings: UpSettings) -> dict[str, RegisteredModel]:
    return register(settings.model, settings.adapter, settings.models)


def _place(source: str) -> Path | None:
    """Return where a model's files are, None if they have to be downloaded."""
    directory = expanded(source)
    return directory if directory.is_dir() else snapshot(source)


def hub_problem(hub_id: str) -> str:
    """Return how a hub fails to answer about a model, or "". Other faults than that are for the download."""
    if any(name == "all" or proxy.startswith("socks") for name, proxy in urllib.request.getproxies().items()):
        return ""
    endpoint = os.environ.get("HF_ENDPOINT", "https://huggingface.co").rstrip("/")
    host, found = urlsplit(endpoint).hostname or "the hub", list[str]()

    def ask() -> None:
        try:
            urllib.request.urlopen(f"{endpoint}/api/models/{quote(hub_id)}", timeout=HUB_SECONDS).close()
            found.append("")
        except urllib.error.HTTPError as error:
            found.append(_refusal(host, error.code))
        except (HTTPException, ValueError):
            found.append("")
        except OSError as error:
            match getattr(error, "reason", error):
                case TimeoutError():
                    pass
                case ssl.SSLError():  # Python may know other certificates than the hub's client
                    found.append("")
                case reason:
                    said = (isinstance(reason, OSError) and reason.strerror) or reason
                    found.append(f"{host} cannot be reached ({said}); try again when the network is there")

    asking = threading.Thread(target=ask, daemon=True)  # a name's lookup has no timeout
    asking.start()
    asking.join(HUB_SECONDS)
    return found[0] if found else f"{host} does not answer within {HUB_SECONDS:g} s; try again later"


def _refusal(host: str, status: int) -> str:
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        return f"{host} answers {status}; try again later"
    if status in _NONE and not has_token():
        advice = "look at the spelling (`agentmem models search` finds models), or set HF_TOKEN if it is private"
        return f"{host} has none of this name ({status}): {advice}"
    return ""

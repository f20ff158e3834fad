"""A process that fetches and loads models when it is told to, a line of JSON each, and says what came of it.

It counts its attempts to use the network, and refuses them where `blocked` is set: huggingface_hub reads where the hub
is, and where its cache, when it is imported.
"""

import asyncio
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

_attempts: list[str] = []
_blocked = False


def _watch(event: str, arguments: tuple[Any, ...]) -> None:
    if event in ("socket.connect", "socket.getaddrinfo", "socket.sendto"):
        _attempts.append(f"{event} {arguments[-1]}")
        if _blocked:
            raise OSError(101, "Network is unreachable")


sys.addaudithook(_watch)

import mlx_lm  # noqa: E402

from agentmem.errors import AgentmemError  # noqa: E402
from agentmem.kv.hints import TurnHints  # noqa: E402
from agentmem.process.models import RegisteredModel  # noqa: E402
from inference_service.engine.thread import EngineThread  # noqa: E402
from inference_service.models.loading import Loader  # noqa: E402
from inference_service.models.sources import fetch, go_offline  # noqa: E402
from inference_service.models.weight_files import is_here  # noqa: E402
from inference_service.settings import WorkerSettings  # noqa: E402


class Enough(RuntimeError):
    """The caller of fetch has had enough; of a kind that huggingface_hub raises, too."""


async def _info(source: str) -> dict[str, Any]:
    engine = EngineThread()
    engine.start()
    with tempfile.TemporaryDirectory() as data:
        loader = Loader(engine, WorkerSettings(data=Path(data)), TurnHints())
        try:
            return {"architecture": (await loader.info(RegisteredModel("m", source))).architecture}
        except AgentmemError as error:
            return {"error": type(error).__name__, "message": str(error)}
        finally:
            loader.stop()
            await engine.stop(10)


def _done(source: str, do: str = "fetch", offline: bool = False, stop_at: float = 2.0) -> dict[str, Any]:
    shares: list[float] = []

    def progress(share: float) -> None:
        shares.append(share)
        if share >= stop_at:
            raise Enough

    if do == "go_offline":
        go_offline()
        return {}
    if do == "info":
        return asyncio.run(_info(source))
    if do == "is_here":
        return {"here": is_here(source)}
    if do == "load":
        model, _ = mlx_lm.load(source, lazy=True)[:2]
        return {"layers": len(model.layers)}
    try:
        return {"path": str(fetch(source, offline=offline, progress=progress)), "shares": shares}
    except (AgentmemError, Enough) as error:
        return {"error": type(error).__name__, "message": str(error), "shares": shares}


for line in sys.stdin:
    order = json.loads(line)
    _attempts.clear()
    _blocked = order.pop("blocked", False)
    print(json.dumps({**_done(**order), "attempts": list(_attempts)}), flush=True)  # noqa: T201

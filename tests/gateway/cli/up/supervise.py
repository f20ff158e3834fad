import asyncio
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

from gateway.cli.up.supervisor import Service, Supervisor

ROOT = str(Path(__file__).parents[4])
CHILD = "tests.gateway.cli.up.child"


def started(directory: Path) -> dict[str, list[int]]:
    """Process ids by service, in the order in which they were started."""
    found: dict[str, list[int]] = {}
    for line in log(directory):
        name, what, *pid = line.split()
        if what == "start":
            found.setdefault(name, []).append(int(pid[0]))
    return found


def log(directory: Path) -> list[str]:
    path = directory / "log"
    return path.read_text().splitlines() if path.exists() else []


def service(name: str, directory: Path, behaviour: str = "serve") -> Service:
    return Service(name, CHILD, [behaviour, name, str(directory)], _ready(name, directory), environment())


def environment() -> dict[str, str]:
    return {"PYTHONPATH": ROOT, "TEST_REASON": "no reason"}


def _ready(name: str, directory: Path) -> Callable[[], Awaitable[bool]]:
    async def ready() -> bool:
        return name in started(directory)

    return ready


if __name__ == "__main__":
    where = Path(sys.argv[1])
    asyncio.run(
        Supervisor([service("one", where), service("two", where)], 1.0, lambda _: None).run(
            asyncio.Event(), lambda: None
        )
    )

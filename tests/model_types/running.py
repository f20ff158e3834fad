"""All types, in child processes that may end or hang: then a type's line says so, and another child goes on."""

import asyncio
import os
import signal
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress

from benchmarks import children
from tests.model_types.configs import TYPES
from tests.model_types.page import UNKNOWN, Line

MODULE = "tests.model_types.child"


async def examined(
    names: Sequence[str],
    processes: int,
    limit: float,
    module: str = MODULE,
    say: Callable[[Line], object] = lambda _: None,
) -> list[Line]:
    """The lines of types, in the order of `names`; `say` is called with each as it is found.

    So many types at a time, `limit` seconds for each. `module` is the child's.
    """
    waiting = deque(name for name in names if name in TYPES)
    found = {name: Line(name, faults=[UNKNOWN]) for name in names if name not in TYPES}

    async def work() -> None:
        while waiting:
            async with children.started(module) as child:
                alive = True
                while alive and waiting:
                    line, alive = await _asked(child, waiting.popleft(), limit)
                    found[line.name] = line
                    say(line)

    await asyncio.gather(*(work() for _ in range(processes)))
    return [found[name] for name in names]


async def _asked(child: children.Child, name: str, limit: float) -> tuple[Line, bool]:
    """A type's line, and whether the child can be asked again."""
    try:
        return Line(**await asyncio.wait_for(child.ask(do="examine", name=name), limit)), True
    except TimeoutError:
        with suppress(ProcessLookupError):
            os.kill(child.pid, signal.SIGKILL)
        return Line(name, faults=[f"it hangs: no answer within {limit:g} s"]), False
    except RuntimeError as error:
        return Line(name, faults=[f"it ends the process: {error}"]), False

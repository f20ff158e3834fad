"""The real worker with one fault built in, named by the variable FAULT. Run as `python -m tests.system.faulty_worker`.

after_commit   the process is killed between the ledger's fsync and the answer, once (a file remembers)
engine_dies    the engine thread dies at the first prefill of more than 100 tokens; the process ends FAULT_EXIT_SECONDS
               later
slow_writes    files of KV are written FAULT_WRITE_SECONDS later
"""

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

from inference_service import worker
from inference_service.__main__ import main
from inference_service.engine.batching import BatchEngine
from inference_service.engine.generation import TurnJob
from inference_service.engine.prefill import PrefillChunk
from inference_service.storage.client import StoreClient

_FAULT = os.environ.get("FAULT", "")


def _after_commit() -> None:
    done = Path(os.environ["FAULT_DONE"])
    commit = StoreClient.commit

    async def killed(self: StoreClient, *arguments: Any) -> Any:
        result = await commit(self, *arguments)
        _die_once(done)
        return result

    StoreClient.commit = killed  # type: ignore[method-assign]


def _die_once(done: Path) -> None:
    if not done.exists():
        done.touch()
        os.kill(os.getpid(), signal.SIGKILL)


def _engine_dies() -> None:
    setattr(worker, "EXIT_SECONDS", float(os.environ["FAULT_EXIT_SECONDS"]))  # noqa: B010 - a constant
    next_chunk = BatchEngine._next_chunk

    def dying(self: BatchEngine, job: TurnJob) -> PrefillChunk:
        if job.tokens > 100:
            raise SystemExit("injected")
        return next_chunk(self, job)

    BatchEngine._next_chunk = dying  # type: ignore[method-assign]


def _slow_writes() -> None:
    stage = StoreClient.stage

    async def late(self: StoreClient, *arguments: Any) -> Any:
        await asyncio.sleep(float(os.environ["FAULT_WRITE_SECONDS"]))
        return await stage(self, *arguments)

    StoreClient.stage = late  # type: ignore[method-assign]


if __name__ == "__main__":
    faults = {"after_commit": _after_commit, "engine_dies": _engine_dies, "slow_writes": _slow_writes}
    {"": lambda: None, **faults}[_FAULT]()
    main()

"""The real worker with one fault built in, named by the variable FAULT. Run as `python -m tests.system.faulty_worker`.

by_number      states are taken for the same where uid and number are, by the worker and in its commits
after_commit   the process is killed between the ledger's fsync and the answer, once (a file remembers)
engine_dies    the engine thread dies at the first prefill of more than 100 tokens; the process ends FAULT_EXIT_SECONDS
               later
"""

import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

from agentmem.kv.ledger import NO_VERSION, Version
from agentmem.v1 import cache_store_pb2 as pb
from agentmem.validation import AgentKey
from inference_service import worker
from inference_service.__main__ import main
from inference_service.engine.batching import BatchEngine
from inference_service.engine.generation import TurnJob
from inference_service.engine.prefill import PrefillChunk
from inference_service.storage.client import Opened, StoreClient

_FAULT = os.environ.get("FAULT", "")


def _after_commit() -> None:
    done = Path(os.environ["FAULT_DONE"])
    commit = StoreClient.commit

    async def killed(self: StoreClient, *arguments: Any) -> Any:
        result = await commit(self, *arguments)
        _die_once(done)
        return result

    StoreClient.commit = killed  # type: ignore[method-assign]


def _by_number() -> None:
    opens, commits = StoreClient.open, StoreClient.commit

    async def believed(
        self: StoreClient, key: AgentKey, known: Version = NO_VERSION, *more: Any, **named: Any
    ) -> Opened:
        opened = await opens(self, key, known, *more, **named)
        same = opened.version[:2] == known[:2] != NO_VERSION[:2]
        return replace(opened, version=known, ledger=None) if same else opened

    async def careless(self: StoreClient, request: pb.CommitTurnRequest) -> Any:
        present = (await opens(self, AgentKey.from_proto(request.key), peek=True)).version
        if present[:2] == (request.base.uid, request.base.version):
            request.base.revision = present.revision
        return await commits(self, request)

    StoreClient.open, StoreClient.commit = believed, careless  # type: ignore[method-assign]


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


if __name__ == "__main__":
    faults = {"after_commit": _after_commit, "by_number": _by_number, "engine_dies": _engine_dies}
    {"": lambda: None, **faults}[_FAULT]()
    main()

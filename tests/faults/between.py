"""`python -m tests.faults.between …`: a store that is killed when the ledger has committed and warm.db has not."""

import os
import signal
import sys
from typing import Any, NoReturn

from cache_service.__main__ import main
from cache_service.files import holding
from cache_service.ledger import kv_changes
from cache_service.ledger.database import Database
from cache_service.tiers.warm_rows import WarmRows


def _follow_or_die(self: WarmRows, *, erase: bool = False) -> Any:
    change = self._ledger.read_blocking(kv_changes.last)
    if change > self.read_blocking(holding.followed):
        _die(self._ledger)
    return _follow(self, erase=erase)


def _die(database: Database) -> NoReturn:
    database.write_blocking(lambda _: None)  # all that was asked of the ledger before is done
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("not reached")


_follow = WarmRows.follow

if __name__ == "__main__":
    WarmRows.follow = _follow_or_die  # type: ignore[method-assign]
    main(sys.argv[1:])

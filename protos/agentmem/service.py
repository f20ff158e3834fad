"""One service as a process: its settings, its logs, and the status with which it ends.

The status tells whoever started the process whether to start it again:

    status            what                                                                          again?
    0                 it was asked to end, and did                                                  no
    CANNOT_SERVE   1  what it is to serve cannot be served: the model, the data directory           no
    WRONG_SETTING  2  a wrong setting, or an address that cannot be had                             no
    BUG           70  what nobody expected, with its traceback in the log                           yes
    MAY_PASS      75  something is full, or another process does not answer                         yes

70 and 75 are EX_SOFTWARE and EX_TEMPFAIL of sysexits.h.
"""

import asyncio
import logging
import os
import sys
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final, NoReturn, TypeVar

from agentmem import errors, logs, output
from agentmem.addresses import AddressError
from agentmem.otlp import Traces
from agentmem.settings import ServiceSettings, SettingsError, load

log = logging.getLogger(__name__)

CANNOT_SERVE: Final = 1
WRONG_SETTING: Final = 2
BUG: Final = 70
MAY_PASS: Final = 75

_PASSING = (errors.ResourceExhausted, errors.Unavailable, errors.DeadlineExceeded, errors.Aborted, errors.Cancelled)

_Settings = TypeVar("_Settings", bound=ServiceSettings)


def run_service(
    name: str,
    settings_type: type[_Settings],
    serve: Callable[[_Settings], Coroutine[Any, Any, int | None]],
    arguments: Sequence[str] | None = None,
    cannot_serve: tuple[type[Exception], ...] = (),
) -> None:
    """Load the settings, serve until `serve` returns, and end the process with a status of the table above.

    `serve` raises SettingsError for a setting that only it can judge, and errors of the contract; `cannot_serve` are
    errors of its own that the same start would meet again. A status that it returns ends the process at once, without
    taking anything down: for a service whose threads cannot be waited for. Files that it makes are its owner's alone.
    """
    try:
        settings = load(settings_type, arguments)
        logs.configure(name, settings.log_level, settings.log_format)
        traces = Traces(name, settings.otlp)
    except SettingsError as error:
        _end(name, WRONG_SETTING, error)
    os.umask(0o077)
    try:
        status = asyncio.run(serve(settings))
    except (SettingsError, AddressError) as error:
        _end(name, WRONG_SETTING, error)
    except cannot_serve as error:
        _end(name, CANNOT_SERVE, error)
    except errors.Internal:
        _end_as_bug(name)
    except errors.AgentmemError as error:
        _end(name, MAY_PASS if isinstance(error, _PASSING) else CANNOT_SERVE, error)
    except Exception:  # noqa: BLE001 - the rim of the process: what nobody expected is logged, and has its own status
        _end_as_bug(name)
    finally:
        traces.stop()
    if status is not None:
        os._exit(status)


def _end(name: str, status: int, problem: Exception) -> NoReturn:
    output.write(sys.stderr, f"agentmem-{name}: {problem}\n")
    raise SystemExit(status)


def _end_as_bug(name: str) -> NoReturn:
    log.critical("the %s failed", name, exc_info=True)
    raise SystemExit(BUG) from None

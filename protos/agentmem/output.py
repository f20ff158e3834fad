"""Standard output and error of a process that goes on when nothing takes what it writes: a pipe whose reader has ended
(`agentmem up | tee log`, where Ctrl-C ends tee too), a terminal that was closed, a full disk behind a redirection.
"""

import errno
import logging
import os
import sys
from typing import TextIO

_NO_READER = frozenset({errno.EPIPE, errno.EIO})
"""The errors of a pipe and of a terminal that are gone for good."""


def write(stream: TextIO, text: str) -> None:
    """Write and flush. Never raises OSError: what cannot be written is lost."""
    try:
        stream.write(text)
        stream.flush()
    except OSError as error:
        failed(stream, error)


def failed(stream: TextIO, error: OSError) -> None:
    """Let a standard stream without a reader lead nowhere from now on.

    Otherwise what is buffered fails again with each further write, and at exit, where Python makes 120 of the status.
    """
    if error.errno in _NO_READER:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())
        os.close(null)


class StandardErrorHandler(logging.StreamHandler[TextIO]):
    """Logs to standard error as long as it can be written; the standard library's would write tracebacks there."""

    def __init__(self) -> None:
        super().__init__(sys.stderr)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - the base class names it
        """Drop a record that cannot be written; what is wrong with the record itself is a bug and is shown."""
        error = sys.exc_info()[1]
        if isinstance(error, OSError):
            failed(self.stream, error)
        else:
            super().handleError(record)

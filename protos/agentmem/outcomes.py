"""The status that a call's caller gets, as the server knows it when the call's handler has ended."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, cast

import grpc

if TYPE_CHECKING:  # generic in the stubs only
    _Context = grpc.aio.ServicerContext[Any, Any]

_DEADLINE_SLACK: Final = 0.01
"""The share of its time that a caller may have left when it gives up: deadlines travel rounded up to three digits."""
_DEADLINE_SLACK_SECONDS: Final = 0.002


class Outcome:
    """How one call ends. Make it when the call begins, outside the interceptor that maps errors."""

    def __init__(self, context: _Context) -> None:
        self._context = context
        self._time = context.time_remaining()

    def code(self, raised: type[BaseException] | None) -> grpc.StatusCode:
        """The status, where the handler has `raised` that, or nothing."""
        code = cast(Any, self._context).code()  # 0 where nobody has set one
        if isinstance(code, grpc.StatusCode):
            return code
        if raised is None:
            return grpc.StatusCode.OK
        if issubclass(raised, asyncio.CancelledError | GeneratorExit):
            return grpc.StatusCode.DEADLINE_EXCEEDED if self._late() else grpc.StatusCode.CANCELLED
        return grpc.StatusCode.UNKNOWN

    def _late(self) -> bool:
        """Whether a call that was cut off has come to its deadline, at either end: the server isn't told which it was.

        The caller's own clock ends a call as a cancellation does, a moment before the server's would.
        """
        left = self._context.time_remaining()
        if left is None or self._time is None:
            return False
        return left <= self._time * _DEADLINE_SLACK + _DEADLINE_SLACK_SECONDS

"""Errors after which the device is right only in a new process. Engine thread.

On Metal arrays may be wrong before MLX raises (ml-explore/mlx#4134).
"""

import re
from typing import Final

import mlx.core as mx

from inference_service.engine.device import on_metal

_METAL: Final = r"Command buffer execution failed|kIO(GPU|Accel)CommandBufferCallbackError"
_CUDA: Final = (
    r"illegal memory access|illegal instruction|misaligned address|unspecified launch failure|device-side assert"
    r"|launch timed out|hardware stack error|invalid program counter|uncorrectable|context is destroyed"
    r"|CUDA_ERROR_(ILLEGAL_|MISALIGNED_|LAUNCH_(FAILED|TIMEOUT)|ASSERT|HARDWARE_|INVALID_PC|ECC_|NVLINK_|CONTEXT_IS_)"
)
_MESSAGES: Final = re.compile(f"{_METAL}|{_CUDA}", re.IGNORECASE)


class DeviceLost(BaseException):
    """Ends the thread."""


def loss(error: BaseException | None) -> str:
    """Return the device's words in an error or its causes. Any thread."""
    while error is not None:
        if isinstance(error, RuntimeError) and _MESSAGES.search(str(error)):
            return str(error).splitlines()[0]
        error = error.__cause__ or error.__context__
    return ""


def end_if_lost(error: BaseException) -> None:
    """Raises DeviceLost. Handlers of MLX's errors begin with it."""
    if found := loss(error):
        raise DeviceLost(found) from error


def wait() -> None:
    """Errors are those of earlier work."""
    try:
        mx.synchronize()
    except RuntimeError as error:
        end_if_lost(error)


def confirm() -> None:
    """Raise earlier errors before what was measured is kept."""
    if on_metal():
        ask()


def ask() -> None:
    """Raise earlier errors."""
    mx.eval(mx.zeros(1) + 1)

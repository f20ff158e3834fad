"""The wired limit: how much of MLX's memory macOS keeps resident on Metal. Elsewhere nothing is called."""

import logging
from typing import Final

import mlx.core as mx

from agentmem.process import logs
from agentmem.process.settings import SettingsError
from agentmem.sizes import byte_size
from inference_service.engine import lost_device
from inference_service.engine.device import device_bytes, share_bytes, working_set
from inference_service.settings import Wired

log = logging.getLogger(__name__)

_MIB: Final = 1 << 20
_SYSTEM_SHARE: Final = 0.35
_SYSTEM_BYTES: Final = 8 << 30
"""The larger one stays the system's. Reported by others: kernel panics on Macs of 16 GB with less (vmlx-swift #421)."""


def wired_limit(setting: Wired, wanted: int, share: int, total: int) -> int:
    """Return whole MiB, as the system takes them; models may take the `share` of the `total` memory."""
    if setting == "off" or not wanted:
        return 0
    most = min(wanted, share, total - max(int(total * _SYSTEM_SHARE), _SYSTEM_BYTES)) if setting == "auto" else setting
    return max(0, most) // _MIB * _MIB


def check_wired(setting: Wired) -> None:
    """Raise SettingsError for more bytes than MLX accepts."""
    most = working_set()
    if most is not None and isinstance(setting, int) and setting > most:
        raise SettingsError(
            f"wired: {byte_size(setting)} are more than the {byte_size(most)} that macOS lets the GPU keep; set fewer, "
            f"or raise its limit until the next start: sudo sysctl iogpu.wired_limit_mb={-(-setting // _MIB)}"
        )


class Wiring:
    """The limit by models' wanted bytes. Engine thread, but for `limit` and `part`, which any thread may read.

    MLX wires allocations one by one while they fit: so the limit is raised before weights are read and pools are taken,
    and what comes later stays unwired. To lower it below what is wired unwires any allocations, those of models that
    stay, too: so that is done once a model's memory is free. No pass may run meanwhile.
    """

    def __init__(self, setting: Wired) -> None:
        self.limit = 0
        self._setting: Wired = setting
        self._wanted: dict[str, int] = {}
        self._refused = False

    def part(self, model_id: str) -> int:
        wanted = self._wanted.copy()
        return self.limit * wanted[model_id] // sum(wanted.values()) if model_id in wanted else 0

    def want(self, model_id: str, nbytes: int) -> None:
        """Never raises."""
        if working_set() is not None:
            self._wanted[model_id] = nbytes
            self._set()

    def leave(self, model_id: str) -> None:
        """Never raises."""
        if self._wanted.pop(model_id, None) is not None:
            mx.clear_cache()
            self._set()

    def _set(self) -> None:
        wanted = sum(self._wanted.values())
        limit = wired_limit(self._setting, wanted, share_bytes(), device_bytes())
        if limit == self.limit:
            return
        lost_device.wait()
        try:
            mx.set_wired_limit(limit)
        except (RuntimeError, ValueError) as error:
            lost_device.end_if_lost(error)
            if not self._refused:
                logs.event(log, "memory stays unwired", logging.WARNING, limit_bytes=limit, error=str(error))
            self._refused = True
            return
        self.limit = limit
        logs.event(log, "wired limit", limit_bytes=limit, wanted_bytes=wanted)

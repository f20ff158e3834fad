"""The most memory that processes take, by Linux's high-water marks; on other systems only what they have now."""

from collections.abc import Mapping
from pathlib import Path

import psutil


class Peaks:
    """Bytes of processes above what they had when this was made, by name."""

    def __init__(self, pids: Mapping[str, int]) -> None:
        self._processes = {name: psutil.Process(pid) for name, pid in pids.items()}
        self._before = {name: process.memory_info().rss for name, process in self._processes.items()}
        self.forget()

    def forget(self) -> None:
        for process in self._processes.values():
            if (reset := Path(f"/proc/{process.pid}/clear_refs")).exists():
                reset.write_text("5")

    def most(self) -> dict[str, int]:
        return {name: _high_water(process) - self._before[name] for name, process in self._processes.items()}

    def kept(self) -> dict[str, int]:
        return {name: process.memory_info().rss - self._before[name] for name, process in self._processes.items()}


def _high_water(process: psutil.Process) -> int:
    status = Path(f"/proc/{process.pid}/status")
    if not status.exists():
        return int(process.memory_info().rss)
    (line,) = [line for line in status.read_text().splitlines() if line.startswith("VmHWM")]
    return int(line.split()[1]) * 1024

"""The machine's memory: what it has, what is free, and what a container allows, which MLX does not see."""

from pathlib import Path

import psutil

from agentmem.checkup import Finding, Findings, listens, ok, problem, warning
from agentmem.sizes import byte_size
from inference_service.engine.device import has_own_memory, usable_bytes
from inference_service.settings import WorkerSettings

_LITTLE_BYTES = 256 << 20
_CGROUP = Path("/sys/fs/cgroup")
_OWN = Path("/proc/self/cgroup")


def looked_at(settings: WorkerSettings) -> Findings:
    """Memory as it is now; a worker that runs has taken its own."""
    found = psutil.virtual_memory()
    given = settings.pool_bytes, settings.batch_bytes
    wanted = usable_bytes() if None in given else sum(each for each in given if each)
    models = 0 if has_own_memory() else min(wanted, usable_bytes())
    return [judged(found.total, found.available, models, container_bytes(), listens(settings.address))]


def judged(total: int, available: int, usable: int, container: int | None, running: bool) -> Finding:
    """What it means. `usable` is what models may take with their agents; `container` what all may, if anything says."""
    name = "memory"
    facts = {"total_bytes": total, "available_bytes": available, "usable_bytes": usable}
    found = f"{byte_size(available)} of {byte_size(total)} available" + (
        ", besides a worker that runs" if running else ""
    )
    if container is not None and container < total:
        facts["container_bytes"] = container
        found += f"; this container may take {byte_size(container)}"
        if container < usable:
            killed = f"{found}, and the worker counts on {byte_size(usable)}: it may be killed under load"
            return warning(
                name,
                killed,
                "give the container more memory, or set pool_bytes and batch_bytes in [worker]",
                facts=facts,
            )
    if available < _LITTLE_BYTES and not running:
        return problem(name, found, "end other programs, or add memory", facts=facts)
    if available < usable and not running:
        less = f"{found}, less than the {byte_size(usable)} that models and agents may take"
        return warning(
            name, less, "end other programs, or set pool_bytes and batch_bytes in [worker] lower", facts=facts
        )
    return ok(name, found, facts=facts)


def container_bytes(own: Path = _OWN, root: Path = _CGROUP) -> int | None:
    """The tightest limit of memory on this process's cgroup and those around it, version 2 or 1; None without one."""
    try:
        groups = [line.split(":", 2) for line in own.read_text(encoding="utf-8").splitlines()]
    except OSError:
        return None
    limits = []
    for _, controllers, path in (group for group in groups if len(group) == 3):
        if controllers not in ("", "memory"):
            continue
        base, file = (root, "memory.max") if not controllers else (root / "memory", "memory.limit_in_bytes")
        inner = base / path.lstrip("/")
        for place in (inner, *inner.parents):
            limits.append(_limit(place / file))
            if place == base:
                break
    return min((limit for limit in limits if limit is not None), default=None)


def _limit(file: Path) -> int | None:
    try:
        return int(file.read_text(encoding="ascii"))
    except (OSError, ValueError):  # "max"
        return None

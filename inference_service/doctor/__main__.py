"""`python -m inference_service.doctor`: the checks of the worker, a line for each finding."""

import os
import sys
from importlib import metadata

from agentmem.checkup import Check, Finding, Findings, ok, problem, tell
from agentmem.settings import SettingsError, load
from inference_service.doctor import hardware
from inference_service.settings import WorkerSettings


def main() -> None:
    """Write the lines to standard output, and end at once: threads that wait for a device end with the process."""
    os.umask(0o077)
    try:
        settings = load(WorkerSettings)
    except SettingsError as error:
        refused = problem(
            "worker settings", str(error), "mend the setting that it names: a flag, AGENTMEM_… or the TOML"
        )
        tell([("worker settings", lambda: [refused])], _write)
        return
    broken: list[Finding] = []
    tell([("MLX", lambda: _importable(broken))], _write)
    if not broken:
        tell(_checks(settings), _write)
    os._exit(0)


def _importable(broken: list[Finding]) -> Findings:
    """Whether MLX can be imported. A build without its GPU's libraries cannot."""
    if found := hardware.import_problem():
        broken.append(found)
        return [found]
    version = metadata.version("mlx")
    return [ok("MLX", f"{version} ({', '.join(hardware.installed())})", facts={"version": version})]


def _checks(settings: WorkerSettings) -> list[Check]:
    from inference_service.doctor import backend, memory, models  # they import MLX

    return [
        ("backend", backend.device),
        ("matrix products", backend.products),
        ("memory", lambda: memory.looked_at(settings)),
        *models.checks(settings),
    ]


def _write(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()

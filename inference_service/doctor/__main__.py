"""`python -m inference_service.doctor`: the checks of the worker, a line for each finding."""

import importlib
import os
import sys

from agentmem.checkup import Check, Findings, ok, problem, tell
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
    failures: list[str] = []
    tell([("MLX", lambda: _importable(failures))], _write)
    if not failures:
        tell(_checks(settings), _write)
    os._exit(0)


def _importable(failures: list[str]) -> Findings:
    """Whether MLX can be imported. A build without its GPU's libraries cannot."""
    builds = hardware.installed()
    try:
        core = importlib.import_module("mlx.core")
        importlib.import_module("mlx_lm")
    except (ImportError, OSError, RuntimeError) as error:
        failures.append(str(error))
        advice = hardware.advice(builds, hardware.nvidia_gpus(), apple=hardware.is_apple_silicon())
        return [problem("MLX", f"MLX cannot be imported: {error}", advice)]
    return [ok("MLX", f"{core.__version__} ({', '.join(builds)})", facts={"version": core.__version__})]


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

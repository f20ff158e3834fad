"""`python -m inference_service.doctor`: run the worker's checks; of MLX alone where it cannot be imported."""

import os

from agentmem.process.checkup import Checks, main
from inference_service.doctor.hardware import mlx
from inference_service.settings import WorkerSettings


def _with_mlx(settings: WorkerSettings) -> Checks:
    from inference_service.doctor.checks import checks

    return checks(settings)


if __name__ == "__main__":
    main(WorkerSettings, "worker", lambda _: {"MLX": mlx}, _with_mlx)
    os._exit(0)  # threads that wait for a device end with the process

"""`python -m inference_service.doctor`: run the worker's checks; of MLX alone where it cannot be imported."""

import os

from agentmem.checkup import run, settings_of
from inference_service.doctor.hardware import mlx
from inference_service.settings import WorkerSettings

if __name__ == "__main__":
    settings = settings_of(WorkerSettings, "worker")
    if settings is not None and run({"MLX": mlx}):
        from inference_service.doctor.checks import checks

        run(checks(settings))
    os._exit(0)  # threads that wait for a device end with the process

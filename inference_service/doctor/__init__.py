"""The worker's checks for `agentmem doctor`, which do not load weights, fetch or write anything.

`python -m inference_service.doctor` takes the flags of `agentmem-worker`, and the environment that the worker gets: a
preloaded BLAS is part of what it measures. hardware.py imports no MLX; checks.py does.
"""

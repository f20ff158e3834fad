"""The worker's half of `agentmem doctor`: whether models can run here, and how fast, without loading their weights.

`python -m inference_service.doctor`, with the flags of `agentmem-worker`, writes the lines of `agentmem.checkup`. Start
it with the environment that the worker gets: a preloaded BLAS is part of what it measures.

__main__.py   the checks in order; MLX is imported in the midst of them, because that may fail
hardware.py   GPUs that are there, and builds of MLX that are installed; imports no MLX
backend.py    what MLX computes on, and how fast it multiplies
memory.py     what the machine has, what is free of it, and what a container may take
models.py     each registered model: its files, its layers, and how many agents fit
"""

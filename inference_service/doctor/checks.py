"""The device, the memory, and each registered model as the worker would open it if it were loaded alone."""

import asyncio
import sys
import time
from functools import partial

import mlx.core as mx
from huggingface_hub import constants

from agentmem.kv.hints import TurnHints
from agentmem.process.checkup import Checks, Finding, Findings, listens, ok, problem, refused, warning
from agentmem.process.model_sources import is_path
from agentmem.process.models import RegisteredModel
from agentmem.process.settings import SettingsError
from agentmem.sizes import byte_size
from inference_service.doctor import hardware
from inference_service.engine import host_memory
from inference_service.engine.device import (
    default_floor,
    device_bytes,
    free_bytes,
    has_openblas,
    has_own_memory,
    share_bytes,
)
from inference_service.engine.thread import EngineThread
from inference_service.models.fitting import KVLimits, fit
from inference_service.models.loading import Loader
from inference_service.models.opening import ModelInfo
from inference_service.models.residency import MemoryLimits
from inference_service.models.sources import cached, go_offline, hub_host, is_directory, registry
from inference_service.settings import WorkerSettings

_CPU_WIDTH, _GPU_WIDTH = 512, 4096
_MOST_SECONDS = 0.5
_END_SECONDS = 5.0
_SLOW_CPU = 20e9
"""Operations per second: the reference BLAS reaches 7e9 on two cores, OpenBLAS 222e9."""

_LITTLE_BYTES = 256 << 20
_INSTALL = "apt-get install libopenblas0-pthread; `agentmem up` then preloads it into the worker"


def checks(settings: WorkerSettings) -> Checks:
    """Return the checks: a check for each model, or one that says why none is registered."""
    checks: Checks = {"backend": backend, "matrix products": matrix_products, "memory": partial(memory, settings)}
    try:
        models = registry(settings.model, settings.adapter, settings.models)
    except SettingsError as error:
        wrong = refused(error)
        return {**checks, "models": lambda: [wrong]}
    return {**checks, **{f"model {each.model_id}": partial(_model, each, settings) for each in models.values()}}


def backend() -> Findings:
    """Check which device MLX computes on, and whether there is a better one."""
    gpus, info, on_cpu = hardware.nvidia_gpus(), mx.device_info(), mx.default_device().type == mx.DeviceType.cpu
    name = "CPU" if on_cpu else "Metal" if mx.metal.is_available() else "CUDA"
    about = f"{name}: {info.get('device_name', info.get('architecture', 'unknown'))}"
    if on_cpu and gpus:
        there = f"{about}, although this machine has {gpus} NVIDIA GPU{'s' if gpus > 1 else ''}"
        return [warning(there, hardware.advice())]
    if on_cpu and hardware.is_apple_silicon():
        return [problem(f"{about}, although this Mac has Metal", hardware.advice())]
    return [ok(f"{about}; models may take {byte_size(share_bytes())} of {byte_size(device_bytes())}")]


def matrix_products() -> Findings:
    """Check the speed of float32 matrix products, for half a second after a first one."""
    on_cpu = mx.default_device().type == mx.DeviceType.cpu
    width = _CPU_WIDTH if on_cpu else _GPU_WIDTH
    a, b = (mx.random.normal((width, width)) for _ in range(2))
    mx.eval(a, b)
    mx.eval(a @ b)
    began, done = time.monotonic(), 0
    while (took := time.monotonic() - began) < _MOST_SECONDS:
        mx.eval(a @ b)
        done += 1
    openblas = has_openblas() if on_cpu and sys.platform == "linux" else None
    return [judge_products(2.0 * width**3 * done / took, openblas)]


def judge_products(flops: float, openblas: bool | None) -> Finding:
    """Return what so many operations per second mean, with or without `openblas`; None: it makes no difference."""
    found, facts = f"{flops / 1e9:,.0f} GFLOP/s in float32", {"flops": round(flops), "openblas": bool(openblas)}
    match openblas, flops < _SLOW_CPU:
        case True, True:
            advice = "look what else runs on these cores; expect long prefills"
            return warning(f"{found} with OpenBLAS, which is slow", advice, facts)
        case False, True:
            return warning(f"{found}: the worker is several times as fast with OpenBLAS", _INSTALL, facts)
        case False, False:
            return ok(f"{found}, without OpenBLAS", _INSTALL, facts)
    return ok(f"{found}, with OpenBLAS preloaded" if openblas else found, facts=facts)


def memory(settings: WorkerSettings) -> Findings:
    """Check the host's memory as it is now, and a GPU's own; a worker that runs has taken its own."""
    total, available, running = host_memory.total_bytes(), host_memory.available_bytes(), listens(settings.address)
    given = (settings.pool_bytes,) if has_own_memory() else (settings.pool_bytes, settings.batch_bytes)
    wanted = share_bytes() if None in given else min(share_bytes(), sum(each for each in given if each))
    floor = default_floor() if settings.free_memory_floor is None else settings.free_memory_floor
    facts = {"total_bytes": total, "available_bytes": available, "wanted_bytes": wanted, "free_bytes": free_bytes()}
    besides = ", besides a worker that runs" if running else ""
    found = f"{byte_size(available)} of {byte_size(total)} available{besides}"
    if has_own_memory():
        found += f"; the GPU has {byte_size(facts['free_bytes'])} of {byte_size(device_bytes())} free"
    if available < _LITTLE_BYTES and not running:
        return [problem(found, "end other programs, or add memory", facts)]
    settable = "pool_bytes" if has_own_memory() else "pool_bytes and batch_bytes"
    if (left := facts["free_bytes"] - floor) < wanted and not running:
        less = f"{found}: models and agents get {byte_size(max(0, left))} instead of {byte_size(wanted)}"
        return [warning(less, f"end other programs, or set {settable} in [worker] lower", facts)]
    return [ok(found, facts=facts)]


def _model(model: RegisteredModel, settings: WorkerSettings) -> Findings:
    """Check that the model's files are here, that it can run with quantized KV, and how many agents fit.

    Raise AgentmemError for what cannot be opened.
    """
    if is_directory(model.source) or is_path(model.source) or cached(model.source) is not None:
        return [asyncio.run(_opened(model, settings))]
    where = f"it is not whole in {constants.HF_HUB_CACHE}"
    if settings.offline or constants.is_offline_mode():
        advice = "start once without --offline, AGENTMEM_OFFLINE and HF_HUB_OFFLINE, or give the directory of a model"
        return [problem(f"{where}, and the worker is offline", advice)]
    later = f"{where}; it is fetched from {hub_host()} when it is loaded, and what it needs is not known yet"
    return [warning(later, f"fetch it beforehand: agentmem models pull {model.source}")]


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
    """Return what the model takes of the device's memory, and what is left for agents; activations are estimated."""
    kv = settings.pool_bytes, settings.batch_bytes, settings.typical_tokens
    found = fit(info, limits, KVLimits(*kv, info.spec.context_length))
    weights, activations = found.needs.weight_bytes, found.needs.activation_bytes
    facts = {"weight_bytes": weights, "activation_bytes": activations, "pool_bytes": found.pool_bytes}
    facts |= {"context_length": found.context_length, "own_context_length": info.own_context_length}
    facts |= {"batch_bytes": found.batch_bytes, "agent_bytes": found.agent_bytes, "agents": found.agents}
    smaller = "take a smaller or quantized model, or"
    if found.refusal:
        return problem(found.refusal, f"{smaller} add memory", facts)
    parts = f"weights {byte_size(weights)}, computing {byte_size(activations)}, {found.context}"
    agents = f"{found.agents:,} hot agents of {found.tokens:,} tokens, {byte_size(found.agent_bytes)} each"
    said = f"{parts}, pool {byte_size(found.pool_bytes)}: {agents}"
    if found.agents:
        return ok(said, facts=facts)
    slow = f"{said}: each turn has to restore its agent"
    return warning(slow, f"{smaller} set pool_bytes in [worker] higher", facts)

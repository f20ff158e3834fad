"""Each registered model: whether its files are here, whether it can run in Q4, and how many agents fit.

Models are opened as the worker opens them, each as if it were loaded alone; weights stay on the disk, nothing is
fetched, and nothing is written.
"""

import asyncio
from functools import partial

from huggingface_hub import constants

from agentmem.checkup import Check, Finding, Findings, ok, problem, warning
from agentmem.errors import AgentmemError, FailedPrecondition
from agentmem.hints import TurnHints
from agentmem.models import RegisteredModel, is_path
from agentmem.settings import SettingsError
from agentmem.sizes import byte_size
from inference_service.engine.thread import EngineThread
from inference_service.models.fetching import cached, go_offline
from inference_service.models.hub_errors import hub_host
from inference_service.models.loader import Loader
from inference_service.models.loading import agent_bytes, check_sizes
from inference_service.models.opening import Outline
from inference_service.models.registry import is_directory, registry
from inference_service.models.residency import make_room
from inference_service.pool.sizing import TYPICAL_TOKENS, agents_that_fit
from inference_service.settings import WorkerSettings

_END_SECONDS = 5.0


def checks(settings: WorkerSettings) -> list[Check]:
    """A check for each model, or one that says why none is registered."""
    try:
        models = registry(settings.model, settings.adapter, settings.models)
    except SettingsError as error:
        refused = problem("models", str(error), "mend --model, --adapter or the registry file as it says")
        return [("models", lambda: [refused])]
    return [(_name(model), partial(_looked_at, model, settings)) for model in models.values()]


def _name(model: RegisteredModel) -> str:
    return f"model {model.model_id}"


def _looked_at(model: RegisteredModel, settings: WorkerSettings) -> Findings:
    if not is_directory(model.source) and not is_path(model.source):
        try:
            missing = cached(model.source) is None
        except AgentmemError as error:
            return [problem(_name(model), error.message, "look at the spelling, or give a directory")]
        if missing:
            return [_elsewhere(model, settings)]
    return [asyncio.run(_opened(model, settings))]


def _elsewhere(model: RegisteredModel, settings: WorkerSettings) -> Finding:
    """A model of a hub, of which not all is here."""
    where = f"it is not whole in {constants.HF_HUB_CACHE}"
    if settings.offline or constants.is_offline_mode():
        advice = "start once without --offline, AGENTMEM_OFFLINE and HF_HUB_OFFLINE, or give the directory of a model"
        return problem(_name(model), f"{where}, and the worker is offline", advice)
    return warning(
        _name(model),
        f"{where}; it is fetched from {hub_host()} when it is loaded, and what it needs is not known yet",
        f"fetch it beforehand: hf download {model.source}",
    )


async def _opened(model: RegisteredModel, settings: WorkerSettings) -> Finding:
    go_offline()
    engine = EngineThread()
    engine.start()
    loader = Loader(engine, settings, TurnHints())
    try:
        outline = await loader.outline(model)
    except FailedPrecondition as error:
        return problem(_name(model), error.message, "fetch its files again, or take a model of another kind")
    except AgentmemError as error:
        return problem(_name(model), error.message, "look at its files")
    finally:
        loader.stop()
        await engine.stop(_END_SECONDS)
    return _fitting(model, outline, loader)


def _fitting(model: RegisteredModel, outline: Outline, loader: Loader) -> Finding:
    """What it takes of the device's memory, and what is left for agents; computing is estimated."""
    needs = loader.needs(outline)
    sizes = loader.sizes(outline, needs, ())
    tokens = min(TYPICAL_TOKENS, outline.context_length)
    agents = agents_that_fit(sizes.space, outline.geometry, tokens)
    facts = {
        "weight_bytes": needs.weight_bytes,
        "activation_bytes": needs.activation_bytes,
        "pool_bytes": sizes.pool_bytes(outline.geometry),
        "batch_bytes": sizes.batch_bytes,
        "agent_bytes": agent_bytes(outline.geometry, outline.context_length),
        "agents": agents,
    }
    try:
        make_room(model.model_id, needs, (), loader.limits)
        check_sizes(outline, sizes)
    except FailedPrecondition as error:
        return problem(_name(model), error.message, "take a smaller or quantized model, or add memory", facts=facts)
    found = (
        f"weights {byte_size(needs.weight_bytes)}, computing at least {byte_size(needs.activation_bytes)}, "
        f"pool {byte_size(facts['pool_bytes'])}: {agents:,} hot agents of {tokens:,} tokens, "
        f"{byte_size(facts['agent_bytes'])} each"
    )
    if not agents:
        advice = "take a smaller or quantized model, or set pool_bytes in [worker] higher"
        return warning(_name(model), f"{found}: each turn has to restore its agent", advice, facts=facts)
    return ok(_name(model), found, facts=facts)

"""The status that `agentmem up` shows."""

from collections.abc import Iterator, Mapping

from agentmem import layout
from agentmem.addresses import parse_address
from agentmem.process.model_registry import register
from agentmem.process.model_sources import DEMO
from agentmem.words import printable
from gateway.cli.up.settings import UpSettings, gateway_settings


def about_models(settings: UpSettings) -> Iterator[str]:
    registered = register(settings.model, settings.adapter, settings.models)
    first, *others = registered.values()
    if first.source != DEMO:
        more = f", and {', '.join(each.model_id for each in others)}" if others else ""
        yield f"model    {first.model_id}{more}"
        return
    world = "it recalls what it is told of its small world (The key is in the cellar.), and can do nothing else"
    yield f"model    demo, of 5.5 million parameters: {world}"
    yield "         a real one: `agentmem models search`, then `agentmem up --model NAME`"


def status_lines(settings: UpSettings, addresses: Mapping[str, str]) -> Iterator[str]:
    """Yield addresses, data, models and keys."""
    scheme = "https" if "tls" in addresses else "http"
    yield f"HTTP     {scheme}://{addresses['http']}/v1   (OpenAI; Anthropic without /v1)"
    if gateway_settings(settings).ui:
        yield f"web UI   {scheme}://{addresses['http']}/ui/   (memories, chats and models, in a browser)"
    yield f"gRPC     {addresses['grpc']}{'   (TLS)' if 'tls' in addresses else ''}"
    if settings.node:
        yield f"cluster  node {settings.node}, which others reach at {settings.advertise}"
    if settings.metrics:
        others = "" if parse_address(settings.metrics).port == 0 else "   (worker and store at the next two ports)"
        yield f"metrics  http://{addresses['metrics']}/metrics{others}"
    yield f"data     {settings.data_directory}"
    gateway = gateway_settings(settings)
    yield from about_models(settings)
    unused = layout.key_file(settings.data)
    if gateway.cluster_keys:
        yield "keys     those of the cluster"
    elif gateway.keys is not None:
        yield f"keys     {gateway.keys}"
    elif unused.exists():
        yield f"keys     none are asked for; `--keys {unused}` asks for those of that file"


def not_serving(settings: UpSettings, failure: str) -> str:
    first, *others = register(settings.model, settings.adapter, settings.models)
    return f"NOT serving {first}: {printable(failure).rstrip('.')}. It serves {', '.join(others) or 'nothing'}."

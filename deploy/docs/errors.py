"""The table of errors, from their classes."""

from collections.abc import Iterator
from inspect import cleandoc

from agentmem.errors import AgentmemError
from deploy.docs.tables import code, table


def page() -> str:
    rows = [
        (
            code(error.code.name),
            error.http_status,
            code(error.__name__),
            cleandoc(error.__doc__ or "").partition("\n\n")[0],
        )
        for error in sorted(errors(AgentmemError), key=lambda each: (each.http_status, each.__name__))
    ]
    return table(("gRPC status", "HTTP status", "class in `agentmem.errors`", "meaning"), rows)


def errors(base: type[AgentmemError]) -> Iterator[type[AgentmemError]]:
    for error in base.__subclasses__():
        if not error.__name__.startswith("_") and error.__module__ == AgentmemError.__module__:
            yield error
        yield from errors(error)

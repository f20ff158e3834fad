"""The contract of Agentmem, the client of its gateway, and the little that both ends must share.

    from agentmem import Client

`agentmem.client` is the client, and what it exports is here, too; it is imported when it is asked for. `agentmem.v1`
holds the protos and their stubs. `agentmem.process` is what every service's process has, `agentmem.kv` what worker and
store share of an agent's memory. Beside them is what clients and services share: `addresses`, `channels`, `tracing` and
`retries` of calls, `rpcs` with their options; `errors`, `validation` and `limits` of what callers give, `diagnostics`
of files that people write; `paging`, `conversations` by content, `jsontext` and `jsonsize`, `words`, `sizes` and
`console` for what is shown; `layout` of a data directory, and `extras` of the package.
"""

TYPE_CHECKING = False  # what type checkers take for true, without an import of typing

if TYPE_CHECKING:
    from agentmem.client import *  # noqa: F403
else:

    def __getattr__(name: str) -> object:
        """Return what the client exports, all of it classes; modules of this package are asked for here first, too."""
        if name[:1].isupper():
            from agentmem import client

            if name in client.__all__:
                return getattr(client, name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __dir__() -> list[str]:
        from agentmem import client

        return sorted({*globals(), *client.__all__})

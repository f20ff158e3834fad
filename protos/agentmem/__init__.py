"""The contract of Agentmem, its client, and what clients and services share.

    from agentmem import Client

`client` is the client, whose exports are here, too; `v1` the protos and their stubs; `process` what every service
needs; `kv` what worker and store share. Calls: `addresses`, `channels`, `tracing`, `retries`, `rpcs`. Requests:
`errors`, `validation`, `limits`, `paging`, `conversations`, `jsontext`, `jsonsize`. People: `diagnostics` of files,
`words`, `sizes`, `console`. The installation: `layout` of a data directory, `extras` of the package.
"""

TYPE_CHECKING = False  # type checkers take it for true, without an import of typing

if TYPE_CHECKING:
    from agentmem.client import *  # noqa: F403
else:

    def __getattr__(name: str) -> object:
        """Import the client when one of its names is used; all are classes. Modules are looked up here first, too."""
        if name[:1].isupper():
            from agentmem import client

            if name in client.__all__:
                return getattr(client, name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __dir__() -> list[str]:
        from agentmem import client

        return sorted({*globals(), *client.__all__})

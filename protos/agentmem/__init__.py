"""The contract of Agentmem, its client, and what clients and services share.

    from agentmem import Client

`client` has the exports; `v1` protos and stubs; `process` is for services, `kv` for worker and store. Calls:
`addresses`, `channels`, `tracing`, `retries`, `rpcs`. Requests: `errors`, `validation`, `limits`, `paging`,
`conversations`, `jsontext`, `jsonsize`. People: `commands`, `diagnostics`, `words`, `sizes`, `console`,
`load_stages`. Installation: `layout`, `distribution`, `extras`, `durable`.
"""

TYPE_CHECKING = False  # type checkers take it for true, without an import of typing

if TYPE_CHECKING:
    from agentmem.client import *  # noqa: F403
else:

    def __getattr__(name: str) -> object:
        """Import the client when one of its names, which are all classes, is used."""
        if name[:1].isupper():
            from agentmem import client

            if name in client.__all__:
                return getattr(client, name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __dir__() -> list[str]:
        from agentmem import client

        return sorted({*globals(), *client.__all__})

import asyncio
from collections.abc import Collection
from typing import Final, Literal

from agentmem.addresses import parse_address
from gateway.pages import Page

Service = Literal["gateway", "worker", "store"]

PATIENCE: Final = 5.0
"""Seconds that a source has to answer: a busy machine is not down."""

_LARGEST_PAGE: Final = 16 * 1024 * 1024


def condition(page: Page | str) -> tuple[Literal["up", "not_ready", "down"], str | None]:
    if isinstance(page, str):
        return "down", page
    missing = [peer for peer, up in page.by("peer", "agentmem_peer_up").items() if not up]
    why = f"does not reach the {' and the '.join(missing)}" if missing else None
    if page.total("agentmem_ready") == 0:
        return "not_ready", why or "it says that it is not serving; its log says why"
    return "up", why


async def read_page(service: Service, address: str, names: Collection[str] = ()) -> Page | str:
    """`address` is "host:port". Return why it cannot be read, or the page, which has only the series `names`, if there
    are any.
    """
    query = "&".join(f"name[]={name}" for name in names)
    try:
        async with asyncio.timeout(PATIENCE):
            status, body = await _get(address, f"/metrics?{query}" if query else "/metrics")
        if status != "200":
            return f"{address} answers with status {status}; is that its page of metrics?"
        page = await asyncio.to_thread(Page.parse, body.decode())  # some ms, for the gateway
    except TimeoutError:
        return f"{address} does not answer within {PATIENCE:g} seconds"
    except ConnectionRefusedError:
        return f"nothing listens at {address}"
    except OSError as error:
        return f"{address} cannot be read: {error.strerror or str(error) or 'the connection broke'}"
    except ValueError as error:
        what = "is no page of metrics" if isinstance(error, UnicodeDecodeError) else error
        return f"what {address} answers {what}; another program may have its port"
    owners = list(page.by("service", "agentmem_build_info"))
    if owners != [service]:
        whose = f"the {owners[0]}'s page" if owners else "another program's page"
        return f"{address} has {whose}, not the {service}'s; give the address that it really has"
    return page


async def _get(address: str, path: str) -> tuple[str, bytes]:
    """By HTTP/1.0: a request on a thread could not be cancelled. Raises OSError, ValueError."""
    reader, writer = await asyncio.open_connection(*parse_address(address))
    try:
        writer.write(f"GET {path} HTTP/1.0\r\nHost: {address}\r\nAccept: text/plain; version=0.0.4\r\n\r\n".encode())
        answer = b""
        while len(answer) < _LARGEST_PAGE and (part := await reader.read(1 << 16)):
            answer += part
    finally:
        writer.close()
    head, separator, body = answer.partition(b"\r\n\r\n")
    words = head.split(None, 2)
    if not separator or len(words) < 2 or not words[0].startswith(b"HTTP/"):
        raise ValueError("is no page of metrics")
    return words[1].decode("ascii", "replace"), body

"""Real servers, asked by a real channel."""

import asyncio
from pathlib import Path

from agentmem.channels import connect
from agentmem.server import GrpcServer
from gateway.peers import Peers


async def test_a_peer_is_up_while_it_says_so(run_dir: Path) -> None:
    heard: dict[str, bool] = {}
    changed = asyncio.Event()

    def told(peer: str, up: bool) -> None:
        heard[peer] = up
        changed.set()

    async def until(wanted: dict[str, bool]) -> None:
        async with asyncio.timeout(60):
            while heard != wanted:
                await changed.wait()
                changed.clear()

    target = f"unix:{run_dir}/worker.sock"
    server = GrpcServer(target, [])
    async with connect(target) as worker, connect(f"unix:{run_dir}/store.sock") as store:
        watching = asyncio.create_task(Peers({"worker": worker, "store": store}, told).watch())
        await until({"worker": False, "store": False})
        await server.start()
        await server.set_serving(True)
        await until({"worker": True, "store": False})
        await server.set_serving(False)
        await until({"worker": False, "store": False})
        await server.set_serving(True)
        await until({"worker": True, "store": False})
        await server.stop(0)
        await until({"worker": False, "store": False})
        watching.cancel()
        await asyncio.wait([watching])
    assert watching.cancelled()

from __future__ import annotations

from pathlib import Path

from agentmem.process.server import GrpcServer
from agentmem.v1 import model_pb2
from gateway.cli.up.readiness import start_line
from tests.gateway.running import running
from tests.gateway.scripted import ScriptedWorker


async def test_a_start_waits_for_one_service_after_the_other(run_dir: Path, worker: ScriptedWorker) -> None:
    assert await start_line(run_dir, 20) == "starting Agentmem: store"
    store = GrpcServer(f"unix:{run_dir}/store.sock", [("agentmem.v1.CacheStoreService", lambda *_: None, None)])
    await store.start()
    try:
        assert await start_line(run_dir, 20) == "starting Agentmem: store"
        await store.set_serving(True)
        assert await start_line(run_dir, 20) == "starting Agentmem: gateway"
        await worker.server.set_serving(False)
        assert await start_line(run_dir, 20) == "starting Agentmem: worker"
        worker.models[0].progress.CopyFrom(model_pb2.LoadProgress(stage="read", share=0.25))
        assert await start_line(run_dir, 20) == "loading demo: reading the weights, 25 %"
        await worker.server.set_serving(True)
        async with running(run_dir):
            assert await start_line(run_dir, 20) == ""
    finally:
        await store.stop(0)

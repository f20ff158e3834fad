"""Other processes that take the device's memory while a worker serves: turns wait, are refused, or fail alone.

On a GPU: `python -m pytest -n0 -rs --log-cli-level=INFO tests/system/test_memory_of_others.py`.
"""

import asyncio
import logging
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import grpc
import psutil
import pytest

from agentmem.v1 import types_pb2
from inference_service.engine.device import free_bytes, on_cuda
from tests.system.client import Turn, chat
from tests.system.stack import running
from tests.tiny_models import CHATML, write_llama, write_tiny

log = logging.getLogger(__name__)
MIB, GIB = 1 << 20, 1 << 30
IGNORE_EOS = types_pb2.Sampling(ignore_eos=True)
OF_HOST = """
import sys
held = bytearray(b"x") * int(sys.argv[1])
print("ready", flush=True)
sys.stdin.read()
"""
OF_GPU = """
import sys
import mlx.core as mx
held = []
while mx.device_info()["free_memory"] > int(sys.argv[1]) + (128 << 20):
    held.append(mx.ones((128 << 20,), dtype=mx.uint8))
    mx.eval(held)
print("ready", flush=True)
sys.stdin.read()
"""

on_host = pytest.mark.skipif(
    sys.platform != "linux" or on_cuda() or psutil.virtual_memory().available < 8 * GIB,
    reason="a CPU of Linux with 8 GiB of available memory is needed",
)
on_gpu = pytest.mark.skipif(
    not on_cuda() or free_bytes() < 12 * GIB, reason="an NVIDIA GPU with 12 GiB of free memory is needed"
)


@contextmanager
def hog(script: str, nbytes: int) -> Iterator[None]:
    """Another process, with so many bytes of the host's memory, or all of the GPU's but so many."""
    arguments = [sys.executable, "-c", script, str(nbytes)]
    with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None and process.stdout.readline() == b"ready\n"
            yield
        finally:
            process.kill()


@pytest.mark.slow
@on_host
async def test_who_runs_goes_on_and_who_comes_waits_for_the_others_memory(tmp_path: Path) -> None:
    """The floor is so high that the worker may take 3 GiB, of which somebody takes all."""
    floor = psutil.virtual_memory().available - 3 * GIB
    flags = ("--free-memory-floor", str(floor), "--room-wait", "1")
    async with running(f"tiny={write_llama(tmp_path / 'm')}", worker_flags=flags) as stack:
        client, served = await stack.client(), None
        messages = chat(("user", "Nobody knows. "))
        first = asyncio.create_task(client.turn("a", messages=messages, max_tokens=2500, sampling=IGNORE_EOS))
        await stack.until_running(1)
        with hog(OF_HOST, 5 * GIB):
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await client.turn("b", messages=messages, max_tokens=900)
            assert refused.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
            assert "the device's memory is taken: 0 B are left for the pool of KV" in str(refused.value.details())
            assert len((await first).token_ids) == 2500
        async with asyncio.timeout(120):  # Other tests take memory, too.
            while served is None:
                with suppress(grpc.aio.AioRpcError):
                    served = await client.turn("b", messages=messages, max_tokens=900, sampling=IGNORE_EOS)
        assert len(served.token_ids) == 900


def write_wide(directory: Path) -> Path:
    """A Llama of 250 million weights, whose chunks take hundreds of megabytes."""
    sizes = {"hidden_size": 2048, "num_hidden_layers": 4, "intermediate_size": 8192, "head_dim": 128}
    heads = {"num_attention_heads": 16, "num_key_value_heads": 8, "rope_theta": 10000.0, "model_type": "llama"}
    return write_tiny(directory, "llama", {**sizes, **heads}, 0, CHATML, 16_384)


@on_gpu
async def test_beside_a_process_that_takes_nearly_all_of_a_gpu(tmp_path: Path) -> None:
    flags = ("--free-memory-floor", str(GIB), "--room-wait", "2")
    async with running(f"wide={write_wide(tmp_path / 'm')}", worker_flags=flags) as stack:
        client = await stack.client()

        async def turn(agent: str, sentences: int, tokens: int) -> Turn:
            messages = chat(("user", f"{agent}: " + "Nobody knows. " * sentences))
            return await client.turn(agent, messages=messages, max_tokens=tokens, sampling=IGNORE_EOS)

        async def outcomes(name: str, turns: int, sentences: int, tokens: int) -> int:
            """How many are served; all others are told that there is no memory."""
            every = [turn(f"{name} {number}", sentences, tokens) for number in range(turns)]
            found = await asyncio.gather(*every, return_exceptions=True)
            failed = [each for each in found if isinstance(each, grpc.aio.AioRpcError)]
            assert len(failed) == sum(isinstance(each, BaseException) for each in found), found
            for error in failed:
                assert error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED, error.details()
            log.info("%s: %d of %d served; %s", name, turns - len(failed), turns, {e.details() for e in failed})
            return turns - len(failed)

        assert await outcomes("before", 4, 200, 50) == 4
        during = asyncio.create_task(outcomes("running", 8, 800, 6000))
        await stack.until_running(8)
        worker = stack.processes["worker"].pid
        with hog(OF_GPU, GIB + 256 * MIB):
            assert await during >= 1
            await outcomes("long", 16, 2500, 2000)
            await outcomes("short", 8, 5, 20)
        assert await outcomes("after", 8, 800, 100) == 8
        assert stack.processes["worker"].pid == worker and stack.processes["worker"].poll() is None

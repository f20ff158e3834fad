"""How often a publication makes something durable, counted by shim.c beneath the store."""

from __future__ import annotations

from pathlib import Path

from . import kv
from .interrupted import bench, template, undisturbed
from .scenarios import Scenario, Store, chain, hold

__all__ = ["template"]
BATCH = 8


def of_one_directory() -> list[int]:
    numbers: dict[int, list[int]] = {}
    for number in range(100, 10_000):
        found = numbers.setdefault(chain(number).chain_hash[0], [])
        found.append(number)
        if len(found) == BATCH:
            return found
    raise AssertionError("there are 256 bytes")


async def test_a_file_is_synced_once_and_its_directory_once_a_batch(fault_shim: Path, template: Path) -> None:
    numbers = of_one_directory()

    async def publish(store: Store) -> None:
        await hold(store, kv.key(), [1, 2, 3, *numbers])

    async with bench(fault_shim, template, Scenario("publish a batch", publish)) as tested:
        operations = (await undisturbed(tested)).operations
    shelf = f"blocks/{chain(numbers[0]).chain_hash[:1].hex()}"
    synced = [operation.partition(" ")[2] for operation in operations if operation.startswith(("fsync", "fdatasync"))]
    files = [path for path in synced if path.endswith(".safetensors")]
    assert len(files) == len(set(files)) == BATCH
    assert len([path for path in synced if path.endswith(shelf)]) == 1
    assert len([path for path in synced if path.endswith("blocks")]) <= 1, "where the directory is made"

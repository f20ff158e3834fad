"""Processes that are asked line by line."""

import asyncio

import pytest

from benchmarks.children import started


async def test_one_that_fails_says_so_each_time() -> None:
    async with started("benchmarks.page_views", computes=False) as child:
        for _ in range(2):
            with pytest.raises(RuntimeError, match="page_views ended with 1"):
                await asyncio.wait_for(child.ask(do="nothing of the kind"), 60)

import asyncio


async def settle() -> None:
    """Let tasks of the event loop run as far as they can without an event from outside."""
    for _ in range(20):
        await asyncio.sleep(0)

"""A service that ends as it is told: `python -m tests.agentmem.process.serve HOW FLAGS…`."""

import asyncio
import logging
import sys

from pydantic_settings import SettingsConfigDict

from agentmem import errors
from agentmem.process.service import run_service
from agentmem.process.settings import ServiceSettings, SettingsError
from agentmem.process.sockets import AddressError

log = logging.getLogger(__name__)

HOW = {
    "setting": SettingsError("no such model"),
    "address": AddressError("taken"),
    "own": LookupError("no such directory"),
    "refused": errors.FailedPrecondition("the model can't"),
    "passing": errors.Unavailable("the store does not answer"),
    "bug": ValueError("never seen"),
    "internal": errors.Internal("incident 1"),
}


class Settings(ServiceSettings):
    model_config = SettingsConfigDict(env_prefix="AGENTMEM_TEST_", cli_prog_name="test")
    toml_table = "store"


async def serve(_: Settings, __: asyncio.Event) -> int | None:
    how = sys.argv[1]
    if how == "at-once":
        return 7
    if how == "talkative":
        for number in range(3):
            log.warning("line %s", number)
        return None
    if how != "well":
        raise HOW[how]
    return None


if __name__ == "__main__":
    run_service("test", Settings, serve, sys.argv[2:], cannot_serve=(LookupError,))

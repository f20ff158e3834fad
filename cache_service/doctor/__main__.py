"""`python -m cache_service.doctor`: run the store's checks; the first alone where a store cannot use the directory."""

from functools import partial

from agentmem.checkup import run, settings_of
from cache_service.doctor.checks import checks, data_directory
from cache_service.settings import StoreSettings

if __name__ == "__main__":
    settings = settings_of(StoreSettings, "store")
    if settings is not None and run({"data directory": partial(data_directory, settings.data_directory)}):
        run(checks(settings))

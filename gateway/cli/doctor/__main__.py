"""`python -m gateway.cli.doctor`: run the gateway's checks, with the flags of `agentmem up`."""

from agentmem.checkup import run, settings_of
from gateway.cli.doctor.checks import checks
from gateway.cli.up.settings import UpSettings

if __name__ == "__main__" and (settings := settings_of(UpSettings, "up")) is not None:
    run(checks(settings))

"""`python -m gateway.cli.doctor.here`: the checks of the gateway, a line for each finding."""

import asyncio
import os
import sys
from functools import partial

from agentmem.checkup import Check, Findings, ok, problem, tell, warning
from agentmem.settings import SettingsError, load
from gateway.cli.doctor.here import limits, ports, running, sockets, versions
from gateway.cli.openblas import preload_here
from gateway.cli.up_settings import UpSettings, service_arguments
from gateway.credential_files import check_files
from gateway.settings import GatewaySettings


def checks(settings: UpSettings) -> list[Check]:
    """The checks of a gateway that `agentmem up` would start with these settings."""
    found: list[running.Running] = []
    return [
        ("versions", versions.versions),
        ("extras", versions.extras),
        ("gateway settings", partial(_settings, settings)),
        ("open files", partial(limits.open_files, settings)),
        ("BLAS", _blas),
        ("run directory", partial(sockets.run_directory, settings.run_directory)),
        ("running", partial(_running, settings, found)),
        ("ports", lambda: ports.ports(settings, found[0] if found else running.NOTHING)),
    ]


def _settings(settings: UpSettings) -> Findings:
    try:
        check_files(load(GatewaySettings, service_arguments(settings).gateway))
    except SettingsError as error:
        return [problem("gateway settings", str(error), "mend the setting or file that it names")]
    return [ok("gateway settings", "settings, keys and certificates can be read")]


def _blas() -> Findings:
    found = preload_here()
    if not found.message:
        return [ok("BLAS", "none is preloaded here: MLX brings what it needs")]
    what = found.message.replace("preloaded", "is preloaded into the worker by agentmem up")
    return [warning("BLAS", what, found.advice) if found.advice else ok("BLAS", what)]


def _running(settings: UpSettings, found: list[running.Running]) -> Findings:
    found.append(asyncio.run(running.look(settings.run_directory)))
    return [running.judged(found[0])]


def main() -> None:
    """Write the lines to standard output."""
    os.umask(0o077)
    tell(checks(load(UpSettings)), _write)


def _write(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()

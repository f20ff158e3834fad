"""How many files a process may have open."""

import resource

from agentmem.checkup import Finding, Findings, ok, problem, warning
from agentmem.settings import SettingsError, load
from gateway.cli.up_settings import UpSettings, service_arguments
from gateway.settings import GatewaySettings

_OWN = 128
"""What a process has open besides connections: libraries, logs, the database, files of KV."""

_FEW = 512


def open_files(settings: UpSettings) -> Findings:
    """The soft limit, which the services inherit, against the connections that the doors take."""
    try:
        connections = load(GatewaySettings, service_arguments(settings).gateway).max_connections
    except SettingsError:  # told by the check of the gateway's settings
        connections = GatewaySettings.model_fields["max_connections"].default
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return [judged(soft, 2 * connections)]


def judged(soft: int, connections: int) -> Finding:
    """What a limit means where both doors together take so many connections."""
    name, needed = "open files", connections + _OWN
    facts = {"limit": soft, "needed": needed}
    found = f"{soft:,} per process"
    raised = (
        f"ulimit -n {needed} before `agentmem up` (LimitNOFILE of a systemd unit, NumberOfFiles of a launchd plist)"
    )
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return ok(name, "any number" if soft == resource.RLIM_INFINITY else found, facts=facts)
    if soft < _OWN:
        return problem(name, f"{found}: services cannot start with so few", raised, facts=facts)
    fewer = f"{found}: enough for {soft - _OWN:,} of {connections:,} connections"
    return (warning if soft < _FEW else ok)(name, fewer, raised, facts=facts)

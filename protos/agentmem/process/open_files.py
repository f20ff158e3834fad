"""The limit of open files, which connections count against. launchd gives programs 256, shells mostly 1,024."""

import resource
from contextlib import suppress
from typing import Final

from agentmem.process.macos import sysctl_int

OWN: Final = 128
"""Files that a process has open besides connections."""

ENOUGH: Final = 65_536
_OPEN_MAX: Final = 10_240


def raised() -> int:
    """Raise this process's soft limit, and return it; ENOUGH stands for more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    now, most = (ENOUGH if limit == resource.RLIM_INFINITY else min(limit, ENOUGH) for limit in (soft, hard))
    # macOS gives no process more than kern.maxfilesperproc, also where its hard limit is none.
    for wanted in (most, sysctl_int("kern.maxfilesperproc") or _OPEN_MAX, _OPEN_MAX):
        if now < wanted <= most:
            with suppress(ValueError, OSError):
                resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
                return wanted
    return now

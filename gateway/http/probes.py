"""Where the HTTP door tells how it is."""

from typing import Final

ALIVE: Final = "/healthz"
READY: Final = "/readyz"
METRICS: Final = "/metrics"

OPEN: Final = frozenset({ALIVE, READY})
"""Paths that everybody may ask, and over any connection: who restarts a gateway has no key, and must not wait."""

PROBES: Final = OPEN | {METRICS}
"""Paths that machines ask all the time: their lines in the log are DEBUG."""

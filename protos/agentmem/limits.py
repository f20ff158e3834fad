"""Limits of a turn, as `agentmem.v1` documents them: what the worker enforces, and the doors refuse earlier.

And of a workflow run's record, which the store enforces.
"""

from typing import Final

MAX_STOPS: Final = 16
"""Stop strings of a turn."""

MAX_STOP_BYTES: Final = 256
"""UTF-8 bytes of one of them."""

MAX_TOP_LOGPROBS: Final = 20
"""Alternatives whose log-probabilities are returned with each token."""

MAX_PENALTY: Final = 2.0
"""Presence and frequency penalties are from minus this to this."""

MAX_SCHEMA_BYTES: Final = 64 * 1024
"""UTF-8 bytes of a JSON Schema that a turn's text has to fit."""

MAX_RECORD_BYTES: Final = 16 * 1024 * 1024
"""The payload of a run's record."""

MAX_SUMMARY_BYTES: Final = 16 * 1024
"""What lists of runs tell of it."""
